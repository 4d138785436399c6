-- What a worker holds under a stamp.
--
-- KEYS     see basics.lua
-- ARGV     worker, stamp
-- returns  records (see `tell`) of running jobs, in no order
local ids = call('ZRANGE', leases, 0, -1)
load(ids)
local ours, answer = {}, {}
for _, id in ipairs(ids) do
  local row = known[id]
  if row and row[STATE] == RUNNING and row[LEASED_BY] == ARGV[1] and row[STAMP] == ARGV[2] then ours[#ours + 1] = id end
end
tell(answer, ours)
return answer
