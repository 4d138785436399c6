-- Waiting jobs that were not started in time, the longest over first.
--
-- KEYS     see constants.lua
-- ARGV     now, limit
-- returns  records (see `add_records`)
local now, limit = time_of_call(ARGV[1]), tonumber(ARGV[2])

-- An index entry that contradicts its row is corrected, because it would be read again and again.
local over, skipped = {}, 0
while #over < limit do
  local ids = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load_rows(ids)
  for _, id in ipairs(ids) do
    local row = rows_by_id[id]
    if not row or row[STATE] > READY or not may_expire(row) then
      append(removals, expiring, id)
    elseif details(row).expires_at > now then
      append(additions, expiring, details(row).expires_at, id)
    elseif #over < limit then
      over[#over + 1] = id
    end
  end
end
if next(removals) or next(additions) then write_all() end
local answer = {}
add_records(answer, over)
return answer
