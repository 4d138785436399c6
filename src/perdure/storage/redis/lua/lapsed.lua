-- Jobs whose lease is over, the longest over first. Leases that reach too far are cut first.
--
-- KEYS     see basics.lua
-- ARGV     now, limit, the longest lease to look at
-- returns  records (see `tell`)
local now, limit, longest = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

-- A lease reaches further than now + lease only if it was given after now: then the clock went back, and all are looked at.
local function cut()
  local ids = call('ZRANGE', leases, 0, -1)
  load(ids)
  for _, id in ipairs(ids) do
    local row = known[id]
    if row and row[LEASED_UNTIL] > now + row[LEASE] then
      row[LEASED_UNTIL] = now + row[LEASE]
      note(came, leases, row[LEASED_UNTIL], id)
      changed(row)
    end
  end
  note(set, meta, 'given', string.format('%.0f', now))
  flush()
end

if tonumber(call('HGET', meta, 'given') or NONE) > now then cut() end

local over, skipped = {}, 0
while #over < limit do
  local ids = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load(ids)
  for _, id in ipairs(ids) do
    if #over < limit and known[id] and known[id][LEASE] <= longest then over[#over + 1] = id end
  end
end
local answer = {}
tell(answer, over)
return answer
