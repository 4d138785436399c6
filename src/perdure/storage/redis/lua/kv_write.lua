-- Write on the shelf, each text under its guards and with its jobs.
--
-- KEYS     see basics.lua
-- ARGV     now, origin, number of writes, then for each: what it says (see WRITE), kind NUL name, text, the hold (see HOLD)
--          and the jobs (see read_jobs in placing.lua), the last three if its options say so
-- returns  {an answer per write as one text: 1, it took hold, or 0; queues that have ready jobs now, whether a job ended}, or
--          what an enqueue says of jobs that cannot be stored, and nothing was written
local WRITE = '<BddHc0' -- options, version that must be there, due_at, job
local WITH_TEXT, WITH_HOLD, WITH_JOBS = 1, 2, 4
local now, origin = clock(argument()), argument()
local placer = placing(now)

local found = {} -- rows of the shelf as this list has left them; false: there is none
local before = {} -- and as they were

local function row_at(field)
  local row = found[field]
  if row == nil then
    local text = call('HGET', shelf, field)
    row = text and on_shelf(text) or false
    if text and not row then move_aside('shelf', shelf, field, text, now) end
    found[field], before[field] = row, row
  end
  return row
end

local function stands(hold)
  local id, attempt, stamp = parse(HOLD, hold)
  load({ id })
  return standing(known[id], attempt, stamp) == 0
end

local answers, new = {}, {}
for number = 1, tonumber(argument()) do
  local options, version, due_at, job = parse(WRITE, argument())
  local field = argument()
  local text = band(options, WITH_TEXT) ~= 0 and argument()
  local hold = band(options, WITH_HOLD) ~= 0 and argument()
  local asked = band(options, WITH_JOBS) ~= 0 and placer.read() or {}
  local row = row_at(field)
  local fits = (version == NONE or version == (row and row.version or 0)) and (not hold or stands(hold))
  answers[number] = fits and 1 or 0
  if fits then
    found[field] = text and { version = (row and row.version or 0) + 1, due_at = due_at, job = job, text = text }
    for _, each in ipairs(asked) do new[#new + 1] = each end
  end
end

local refused, _, fresh = placer.plan(new, true)
if refused then return refused end
placer.store(fresh)
if #fresh > 0 then -- the bodies first: see enqueue.lua
  variadic('HSET', { [jobs] = set[jobs] })
  note_format()
end
set[jobs] = nil
for field, row in pairs(found) do
  if row ~= before[field] then
    if before[field] then move_on_shelf(field, before[field], leave) end
    if row then
      move_on_shelf(field, row, join)
      note(set, shelf, field, shelf_text(row))
    else
      note(unset, shelf, field)
    end
  end
end
local follows = came[unresolved]
flush()
if next(touched) then keep_gates(now) end
if follows then settle(now, AT_ONCE) end
return { table.concat(answers), publish(origin), ended_some and 1 or 0 }
