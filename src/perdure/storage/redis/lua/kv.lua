-- Part of the verbs of the kv table: entries by kind and name.
--
-- `kv`: kind NUL name → version, due_at, job (or nothing) and the text. `kv_index` finds them: n, kind NUL name; d, kind NUL
-- due_at name; j, job, kind NUL name. Kinds and names are escaped: they contain no NUL.
local KV_ENTRY = '<ddHc0' -- version, due_at, job; the text follows

-- Read an entry: version, due_at, job, text. nil, if it cannot be read.
local function parse_entry(text)
  local fine, version, due_at, job, at = pcall(parse, KV_ENTRY, text)
  if not fine or not is_whole(version) or not is_whole(due_at) or (#job ~= 0 and #job ~= 16) then return nil end
  return { version = version, due_at = due_at, job = job, text = sub(text, at) }
end

local function pack_entry(row) return pack(KV_ENTRY, row.version, row.due_at, #row.job, row.job) .. row.text end

-- Move a row into or out of what finds it (see `leave` and `join`).
local function move_entry(field, row, move)
  local kind, name = match(field, '^([^%z]*)%z([^%z]*)$')
  move(kv_index, 'n' .. field)
  if row.due_at ~= NONE then move(kv_index, 'd' .. kind .. '\0' .. sortable(row.due_at) .. name) end
  if row.job ~= '' then move(kv_index, 'j' .. row.job .. field) end
end

-- Remove the entries that belong to a job.
local function remove_entries(job)
  local prefix = 'j' .. job
  for _, member in ipairs(call('ZRANGEBYLEX', kv_index, '[' .. prefix, below_prefix(prefix))) do
    local field = sub(member, 18)
    local text = call('HGET', kv, field)
    append(removals, kv_index, member)
    local row = text and parse_entry(text)
    if row then move_entry(field, row, leave) end
    append(field_removals, kv, field)
  end
end
