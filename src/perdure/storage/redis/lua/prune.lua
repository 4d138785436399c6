-- Take away ended jobs that are no longer kept, and window keys that are over. Within ten minutes after its end a job is only
-- hidden, so that a repeated enqueue finds it.
--
-- KEYS     see basics.lua
-- ARGV     now, limit
-- returns  how many jobs
local now, limit = clock(ARGV[1]), tonumber(ARGV[2])
local HIDDEN_FOR = 600000000 -- see retry.py
local leaving, doomed = {}, {}

local function doom(id)
  if not doomed[id] and #leaving < limit then
    doomed[id] = true
    leaving[#leaving + 1] = id
  end
end

-- ---- who is needed -------------------------------------------------------------------------------------------------------
-- A job that somebody waits for, or has waited for and not ended, stays. Edges of children that have ended are removed as they
-- are met, so many in a call.
local LATER = 60000000 -- microseconds until those are looked at again that are met in vain in great numbers
local edges_left, some_unresolved = 20 * AT_ONCE, call('EXISTS', unresolved) == 1

local function all_over(id)
  local prefix = 'k' .. id
  while edges_left > 0 do
    local members = call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 16), 'LIMIT', 0, AT_ONCE)
    if #members == 0 then return true end
    local children = {}
    for number, member in ipairs(members) do children[number] = sub(member, 18) end
    for number, text in ipairs(texts_of(children)) do
      if text and (string.byte(text) or CANCELLED) <= RUNNING then return false end
      call('ZREM', edges, members[number])
      edges_left = edges_left - 1
    end
  end
  return false
end

local function needed(id, row)
  if not has(row, FOLLOWED) and not (some_unresolved and call('ZSCORE', unresolved, id)) then return false end
  local prefix = 'o' .. id
  if call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1] then return true end
  return not all_over(id)
end

local function kept(id) return has(known[id], HELD) or needed(id, known[id]) end

-- ---- past their time: those who are kept do not use up the limit ---------------------------------------------------------
local skipped, met_in_vain = 0, 0
while #leaving < limit do
  local ids = call('ZRANGEBYSCORE', prunable, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load(ids)
  for _, id in ipairs(ids) do
    if not known[id] or known[id][PRUNE_AT] == NONE or known[id][STATE] <= RUNNING then
      note(gone, prunable, id) -- it is not what the index says
    elseif known[id][PRUNE_AT] > now then
      note(came, prunable, known[id][PRUNE_AT], id)
    elseif #leaving < limit then
      if not kept(id) then
        doom(id)
      elseif not has(known[id], HELD) then
        met_in_vain = met_in_vain + 1
        if met_in_vain > AT_ONCE then note(came, prunable, now + LATER, id) end
      end
    end
  end
end

-- ---- too many of their task --------------------------------------------------------------------------------------------
-- The jobs of a group that keep the same number stand together, the oldest first. A job goes when the group has that many
-- newer ones; from the first that stays on, all younger ones stay.
local function newer(prefix, kinds, tail)
  local found = 0
  for _, kind in ipairs(kinds) do
    local under = prefix .. kind .. '\0'
    found = found + call('ZLEXCOUNT', ended, '(' .. under .. tail, beyond(under))
  end
  return found
end

local function too_many(prefix, kinds, most)
  local under, from, looked_at = prefix .. most .. '\0', nil, 0
  while #leaving < limit and looked_at < limit + 10 * AT_ONCE do
    local member = call('ZRANGEBYLEX', ended, from or '[' .. under, beyond(under), 'LIMIT', 0, 1)[1]
    if not member then return end
    local tail = string.sub(member, #under + 1)
    if newer(prefix, kinds, tail) < (tonumber(most) or 0) then return end
    local id = string.sub(tail, 9)
    load({ id })
    if not known[id] or known[id][STATE] <= RUNNING or among_ended(known[id]) ~= member then
      note(gone, ended, member) -- it is not what the index says
    elseif not kept(id) then
      doom(id)
    end
    from = '(' .. member
    looked_at = looked_at + 1
  end
end

for _, task in ipairs(names_under(ended, '')) do
  for _, group in ipairs({ 'd', 'o' }) do
    local prefix = task .. '\0' .. group .. '\0'
    local kinds = names_under(ended, prefix)
    for _, most in ipairs(kinds) do
      if most ~= '-' then too_many(prefix, kinds, most) end
    end
  end
end

-- ---- writing -----------------------------------------------------------------------------------------------------------
local texts_of_jobs = call('ZRANGEBYLEX', shelved, '[j', '(k', 'LIMIT', 0, 1)[1]

local function forget_edges(id, row)
  if has(row, WAITED) then close_edges(id, has(row, FINISHED) and 'f' or 's', false) end
  note(gone, unresolved, id)
end

local function hide(row)
  lift(row)
  row[VERSION] = row[VERSION] + 1
  row[PRUNE_AT], row[KEEP_LAST] = row[FINISHED_AT] + HIDDEN_FOR, NONE
  mark(row, HIDDEN, true)
  set_back(row)
end

local function remove(id, row)
  lift(row)
  note(gone, created, id)
  local found = details(row)
  for name in string.gmatch(found.names, '([^%z]+)%z') do
    note(gone, named, name .. '\0' .. ordered(found.created_at) .. id)
  end
  for _, key in ipairs({ rows, jobs }) do note(unset, key, id) end
  if has(row, HAS_OUTCOME) then note(unset, outcomes, id) end
  if has(row, HAS_ERRORS) then note(unset, errors, id) end
  if has(row, HAS_PROGRESS) then note(unset, progress, id) end
  if has(row, HAS_LOG) then note(unset, logs, id) end
  if has(row, WAITED) or has(row, FOLLOWED) then forget_edges(id, row) end
  if texts_of_jobs then forget_texts(id) end
end

for _, id in ipairs(leaving) do
  local row = known[id]
  if has(row, HIDDEN) or row[FINISHED_AT] + HIDDEN_FOR <= now then
    remove(id, row)
  else
    hide(row)
  end
end
local over = call('ZRANGEBYSCORE', windows, '-inf', now, 'LIMIT', 0, 20 * AT_ONCE)
for _, key in ipairs(over) do
  note(gone, windows, key)
  note(unset, kept_keys, key)
end
flush()
return #leaving
