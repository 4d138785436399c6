-- List the jobs that a worker holds under a stamp.
--
-- KEYS     see constants.lua
-- ARGV     worker, stamp
-- returns  records (see `add_records`) of running jobs, in no order
local ids = call('ZRANGE', leases, 0, -1)
load_rows(ids)
local ours, answer = {}, {}
for _, id in ipairs(ids) do
  local row = rows_by_id[id]
  if row and row[STATE] == RUNNING and row[LEASED_BY] == ARGV[1] and row[STAMP] == ARGV[2] then ours[#ours + 1] = id end
end
add_records(answer, ours)
return answer
