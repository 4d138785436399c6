-- Make scheduled jobs ready whose time has come.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, limit
-- returns  {how many, queues that have ready jobs now}
local now = time_of_call(ARGV[1])
local promoted = promote_due(now, tonumber(ARGV[3]))
if next(changed_lines) then update_gates(now) end
return { promoted, publish_signals(ARGV[2]) }
