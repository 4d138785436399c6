-- Waiting jobs that were not started in time, the longest over first.
--
-- KEYS     see basics.lua
-- ARGV     now, limit
-- returns  records (see `tell`)
local answer = {}
tell(answer, call('ZRANGEBYSCORE', expiring, '-inf', clock(ARGV[1]), 'LIMIT', 0, ARGV[2]))
return answer
