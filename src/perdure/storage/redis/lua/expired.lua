-- Waiting jobs that were not started in time, the longest over first.
--
-- KEYS     see basics.lua
-- ARGV     now, limit
-- returns  records (see `tell`)
local now, limit = clock(ARGV[1]), tonumber(ARGV[2])

-- What the index says of a row that does not agree is put right: else it would be looked at for ever.
local over, skipped = {}, 0
while #over < limit do
  local ids = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load(ids)
  for _, id in ipairs(ids) do
    local row = known[id]
    if not row or row[STATE] > READY or not may_expire(row) then
      note(gone, expiring, id)
    elseif details(row).expires_at > now then
      note(came, expiring, details(row).expires_at, id)
    elseif #over < limit then
      over[#over + 1] = id
    end
  end
end
if next(gone) or next(came) then flush() end
local answer = {}
tell(answer, over)
return answer
