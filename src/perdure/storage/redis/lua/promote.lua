-- Make scheduled jobs ready whose time has come.
--
-- KEYS     see basics.lua
-- ARGV     now, origin, limit
-- returns  {how many, queues that have ready jobs now}
local now = clock(ARGV[1])
local promoted = promote(now, tonumber(ARGV[3]))
if next(touched) then keep_gates(now) end
return { promoted, publish(ARGV[2]) }
