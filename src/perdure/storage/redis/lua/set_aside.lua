-- Replace jobs that cannot be read, if their rows are as they were found, and keep what was found.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, then for each job: id, row as it was found ('': none), row, body, outcome, errors, progress, what is kept; all
--          of them '' for a job that can be read; row and body '' for what is no job at all
-- returns  for each: 1, it was set aside, or 0
local WIDTH = 8
local now, origin = time_of_call(ARGV[1]), ARGV[2]
local answers = {}

-- Out of the indexes. What cannot be read is taken out of those that know it by its id; whoever meets it in another one removes
-- it there.
local function remove_from_indexes(id, text)
  local row = text and read_row(id, text)
  if row then
    leave_indexes(row)
    free_key(row)
    return
  end
  for _, key in ipairs({ leases, schedule, expiring, prunable, dead, created }) do append(removals, key, id) end
  append(field_writes, meta, 'miscounted', '1')
end

local function write(at, id, text)
  remove_from_indexes(id, text)
  local row = parse_row(id, ARGV[at + 2])
  enter_indexes(row)
  append(additions, created, details(row).created_at, id)
  for name in string.gmatch(details(row).names, '([^%z]+)%z') do
    append(additions, named, 0, name .. '\0' .. sortable(details(row).created_at) .. id)
  end
  append(field_writes, rows, id, ARGV[at + 2])
  append(field_writes, jobs, id, ARGV[at + 3])
  for number, key in ipairs({ outcomes, errors, progress }) do
    local value = ARGV[at + 3 + number]
    if value == '' then append(field_removals, key, id) else append(field_writes, key, id, value) end
  end
  for _, kind in ipairs({ 'f', 's' }) do close_edges(id, kind, false) end
  local prefix = 'o' .. id
  if call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1] then mark_unresolved(id) end
  append(field_writes, unreadable, 'j' .. id, ARGV[at + 7])
  any_ended = true
end

-- What is no job at all is moved away.
local function move(at, id)
  for _, key in ipairs({ rows, jobs, outcomes, errors, progress }) do append(field_removals, key, id) end
  for _, key in ipairs({ leases, schedule, expiring, prunable, dead, created }) do append(removals, key, id) end
  append(field_writes, unreadable, 'j' .. id, ARGV[at + 7])
  append(field_writes, meta, 'miscounted', '1')
end

for at = 3, #ARGV, WIDTH do
  local id, text, answer = ARGV[at], call('HGET', rows, ARGV[at]), 0
  if ARGV[at + 7] == '' then
    if not text and call('HEXISTS', jobs, id) == 0 then
      for _, key in ipairs({ leases, schedule, expiring, prunable, dead, created }) do append(removals, key, id) end
    end
    append(removals, unread, id)
  elseif (text or '') == ARGV[at + 1] then
    if ARGV[at + 2] == '' then move(at, id) else write(at, id, text) end
    append(removals, unread, id)
    answer = 1
  end
  answers[#answers + 1] = answer
end
write_all()
if next(changed_lines) or next(freed_keys) then update_gates(now) end
publish_signals(origin)
return answers
