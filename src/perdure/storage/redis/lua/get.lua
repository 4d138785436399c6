-- Jobs by id.
--
-- KEYS     see basics.lua
-- ARGV     ids
-- returns  records (see `tell`) of those that are on record
local answer = {}
tell(answer, ARGV)
return answer
