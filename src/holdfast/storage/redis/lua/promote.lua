-- Make scheduled jobs ready whose time has come.
--
-- KEYS     see the prelude
-- ARGV     now, origin, limit
-- returns  {how many, queues that have ready jobs now}
local promoted = promote(clock(ARGV[1]), tonumber(ARGV[3]))
return { promoted, publish(ARGV[2]) }
