-- Part of every verb that stores jobs: jobs that wait for others.
-- Made anew where there are such jobs. `planned`: the jobs that this script puts on record, by id.
local function parent_links(planned)
  local LINK = '<I4I4' -- the place of `after` in the body (first byte, first byte behind); then the parents' ids
  local SUCCEEDED, SKIPPED = 5, 6

  local function parents_of(job)
    local found = {}
    for at = 9, #job.link, 16 do found[#found + 1] = sub(job.link, at, at + 15) end
    return found
  end

  local function uuid(id)
    local digits = string.gsub(id, '.', function(character) return string.format('%02x', string.byte(character)) end)
    return table.concat({ sub(digits, 1, 8), sub(digits, 9, 12), sub(digits, 13, 16), sub(digits, 17, 20), sub(digits, 21) }, '-')
  end

  -- A text as MessagePack writes it.
  local function packed(text)
    if #text < 32 then return string.char(160 + #text) .. text end
    if #text < 256 then return '\217' .. string.char(#text) .. text end
    if #text < 65536 then return '\218' .. pack('>H', #text) .. text end
    return '\219' .. pack('>I4', #text) .. text
  end

  -- Replace parents that were duplicates by the jobs that own their keys.
  local function replace_duplicates(job, owner_instead)
    local redirected, seen, differs = {}, {}, false
    for _, parent in ipairs(job.parents) do
      local leader = owner_instead[parent] or parent
      differs = differs or leader ~= parent or seen[leader]
      if not seen[leader] then
        seen[leader] = true
        redirected[#redirected + 1] = leader
      end
    end
    if not differs then return end
    local texts, from, behind = {}, parse(LINK, job.link)
    for number, parent in ipairs(redirected) do texts[number] = '"' .. uuid(parent) .. '"' end
    local after = packed('[' .. table.concat(texts, ',') .. ']')
    job.body = sub(job.body, 1, from) .. after .. sub(job.body, behind + 1)
    job.parents, job.waits = redirected, #redirected
  end

  -- Those of these that are on record, without those that were deleted before they were done.
  local function followable(ids)
    local found = {}
    for number, text in ipairs(row_texts(ids)) do
      local row = text and read_row(ids[number], text)
      local done = row and (row[STATE] == SUCCEEDED or row[STATE] == SKIPPED)
      -- one that cannot be read will be a dead letter, which somebody may wait for
      found[ids[number]] = text and (not row or done or not has(row, HIDDEN))
    end
    return found
  end

  -- A job whose parent is neither stored nor new.
  local function orphan_among(asked, new)
    local older = {}
    for _, job in ipairs(asked) do
      for _, parent in ipairs(job.parents or {}) do
        if not planned[parent] and not new[parent] then older[#older + 1] = parent end
      end
    end
    local found = followable(older)
    for _, job in ipairs(asked) do
      for _, parent in ipairs(job.parents or {}) do
        if found[parent] == false then return { 'orphan', job.id, parent } end
      end
    end
  end

  -- Let jobs wait for whom they name, or for who stands for these. Gives {'orphan', job, parent} if there is none.
  local function find_parents(asked, owner_instead)
    for _, job in ipairs(asked) do
      if job.link then
        job.parents = parents_of(job)
        replace_duplicates(job, owner_instead)
      end
    end
    return orphan_among(asked, {})
  end

  -- The same for jobs that are put on record with changes, and may wait for those of another.
  local function refuse_orphans(lists)
    local all, new = {}, {}
    for _, asked in pairs(lists) do
      for _, job in ipairs(asked) do
        all[#all + 1] = job
        new[job.id] = true
        if job.link then job.parents = parents_of(job) end
      end
    end
    return orphan_among(all, new)
  end

  local function write_edges(job)
    local kind = band(job.shape.marks, FINISHED) ~= 0 and 'f' or 's'
    for _, parent in ipairs(job.parents) do
      append(additions, edges, 0, 'o' .. parent .. kind .. job.id)
      append(additions, edges, 0, 'c' .. job.id .. parent)
      mark_unresolved(parent)
    end
  end

  return { find_parents = find_parents, refuse_orphans = refuse_orphans, write_edges = write_edges }
end
