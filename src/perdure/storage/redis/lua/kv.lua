-- Part of the verbs of the shelf: texts by kind and name.
--
-- `shelf`: kind NUL name → version, due_at, job (or nothing) and the text. `shelved` finds them: n, kind NUL name; d, kind NUL
-- due_at name; j, job, kind NUL name. Kinds and names are escaped: they contain no NUL.
local ON_SHELF = '<ddHc0' -- version, due_at, job; the text follows

-- A row of the shelf: version, due_at, job, text. nil, if it cannot be read.
local function on_shelf(text)
  local fine, version, due_at, job, at = pcall(parse, ON_SHELF, text)
  if not fine or not is_whole(version) or not is_whole(due_at) or (#job ~= 0 and #job ~= 16) then return nil end
  return { version = version, due_at = due_at, job = job, text = sub(text, at) }
end

local function shelf_text(row) return pack(ON_SHELF, row.version, row.due_at, #row.job, row.job) .. row.text end

-- Move a row into or out of what finds it (see `leave` and `join`).
local function move_on_shelf(field, row, move)
  local kind, name = match(field, '^([^%z]*)%z([^%z]*)$')
  move(shelved, 'n' .. field)
  if row.due_at ~= NONE then move(shelved, 'd' .. kind .. '\0' .. ordered(row.due_at) .. name) end
  if row.job ~= '' then move(shelved, 'j' .. row.job .. field) end
end

-- What belongs to a job goes with it.
local function forget_texts(job)
  local prefix = 'j' .. job
  for _, member in ipairs(call('ZRANGEBYLEX', shelved, '[' .. prefix, below(prefix))) do
    local field = sub(member, 18)
    local text = call('HGET', shelf, field)
    note(gone, shelved, member)
    local row = text and on_shelf(text)
    if row then move_on_shelf(field, row, leave) end
    note(unset, shelf, field)
  end
end
