-- Look at edges that are unresolved.
--
-- KEYS     see basics.lua
-- ARGV     now, origin, limit
-- returns  {how many were looked at, queues that have ready jobs now, whether a job ended, some ids of jobs that are to be set aside}
local looked = settle(clock(ARGV[1]), tonumber(ARGV[3]))
return { looked, publish(ARGV[2]), ended_some and 1 or 0, call('ZRANGE', unread, 0, AT_ONCE - 1) }
