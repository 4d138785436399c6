-- Write kv entries, each under its guards and with its jobs.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, number of writes, then for each: the write (see WRITE), kind NUL name, text, the hold (see HOLD)
--          and the jobs (see read_jobs in put_jobs.lua), the last three if its options say so
-- returns  {an answer per write as one text: 1, it took hold, or 0; queues that have ready jobs now, whether a job ended}, or
--          the answer of an enqueue that stored nothing; then nothing was written
local WRITE = '<BddHc0' -- options, version that must be there, due_at, job
local WITH_TEXT, WITH_HOLD, WITH_JOBS = 1, 2, 4
local now, origin = time_of_call(argument()), argument()
local writer = job_writer(now)

local found = {} -- entries as this script has left them; false: there is none
local before = {} -- and as they were

local function row_at(field)
  local row = found[field]
  if row == nil then
    local text = call('HGET', kv, field)
    row = text and parse_entry(text) or false
    if text and not row then set_value_aside('kv', kv, field, text, now) end
    found[field], before[field] = row, row
  end
  return row
end

local function is_held(hold)
  local id, attempt, stamp = parse(HOLD, hold)
  load_rows({ id })
  return check_hold(rows_by_id[id], attempt, stamp) == 0
end

local answers, new = {}, {}
for number = 1, tonumber(argument()) do
  local options, version, due_at, job = parse(WRITE, argument())
  local field = argument()
  local text = band(options, WITH_TEXT) ~= 0 and argument()
  local hold = band(options, WITH_HOLD) ~= 0 and argument()
  local asked = band(options, WITH_JOBS) ~= 0 and writer.read() or {}
  local row = row_at(field)
  local fits = (version == NONE or version == (row and row.version or 0)) and (not hold or is_held(hold))
  answers[number] = fits and 1 or 0
  if fits then
    found[field] = text and { version = (row and row.version or 0) + 1, due_at = due_at, job = job, text = text }
    for _, each in ipairs(asked) do new[#new + 1] = each end
  end
end

local refused, _, fresh = writer.plan(new, true)
if refused then return refused end
writer.store(fresh)
if #fresh > 0 then -- the bodies first: see enqueue.lua
  run_in_slices('HSET', { [jobs] = field_writes[jobs] })
  note_format()
end
field_writes[jobs] = nil
for field, row in pairs(found) do
  if row ~= before[field] then
    if before[field] then move_entry(field, before[field], leave) end
    if row then
      move_entry(field, row, join)
      append(field_writes, kv, field, pack_entry(row))
    else
      append(field_removals, kv, field)
    end
  end
end
local follows = additions[unresolved]
write_all()
if next(changed_lines) then update_gates(now) end
if follows then resolve(now, AT_ONCE) end
return { table.concat(answers), publish_signals(origin), any_ended and 1 or 0 }
