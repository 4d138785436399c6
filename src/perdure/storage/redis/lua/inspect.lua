-- Read some more jobs, so that Python finds those that cannot be read. Long bodies are checked when they are claimed.
--
-- KEYS     see constants.lua
-- ARGV     about how many jobs, where to go on ('0': from the start)
-- returns  {where to go on, records (see `add_records`)}
local LONG = 16384
local answer = call('HSCAN', rows, ARGV[2], 'COUNT', ARGV[1])
local ids, records = {}, {}
for number = 1, #answer[2], 2 do
  local id = answer[2][number]
  if #id ~= 16 or flaw_in(answer[2][number + 1]) then
    mark_unreadable(id)
  elseif call('HSTRLEN', jobs, id) <= LONG then
    ids[#ids + 1] = id
  end
end
add_records(records, ids)
return { answer[1], records }
