-- Write a worker's heartbeat, remove a worker, or list the workers seen lately; older ones are removed.
--
-- KEYS     see constants.lua
-- ARGV     now, then 'beat', worker, text, or 'leave', worker, or 'list', microseconds
-- returns  for 'list': the texts, each after the worker's name and when it was seen (eight bytes)
local now, what = time_of_call(ARGV[1]), ARGV[2]
if what == 'beat' then
  call('HDEL', workers, '') -- so that a full memory takes signs of life
  call('HSET', workers, ARGV[3], pack('<d', now) .. ARGV[4])
elseif what == 'leave' then
  call('HDEL', workers, ARGV[3])
else
  local listed, forgotten = call('HGETALL', workers), {}
  local earliest = now - tonumber(ARGV[3])
  for number = 1, #listed, 2 do
    local text = listed[number + 1]
    -- one that cannot be read is forgotten too: a worker that lives writes its own anew
    if #text < 8 or not (parse('<d', text) >= earliest) then forgotten[#forgotten + 1] = listed[number] end
  end
  if #forgotten > 0 then run_in_slices('HDEL', { [workers] = forgotten }) end
  return call('HGETALL', workers)
end
