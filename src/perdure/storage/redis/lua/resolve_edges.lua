-- Resolve edges.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, limit
-- returns  {how many were visited, queues that have ready jobs now, whether a job ended, some ids of jobs that are to be set aside}
local visited = resolve(time_of_call(ARGV[1]), tonumber(ARGV[3]))
return { visited, publish_signals(ARGV[2]), any_ended and 1 or 0, call('ZRANGE', unread, 0, AT_ONCE - 1) }
