-- Tell how long it takes until the next lease is over.
--
-- KEYS     see constants.lua
-- ARGV     now
-- returns  microseconds, 0 or less when one may be over, nothing when no job is held
local now = time_of_call(ARGV[1])

if (number_in(meta, 'given') or NONE) > now then return 0 end -- the clock went back: leases are to be cut
local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')
if #first == 0 then return false end
return string.format('%.0f', math.max(NONE, math.min(tonumber(first[2]), MOST)) - now)
