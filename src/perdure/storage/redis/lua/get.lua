-- Read jobs by id.
--
-- KEYS     see constants.lua
-- ARGV     ids
-- returns  records (see `add_records`) of those that are on record
local answer = {}
add_records(answer, ARGV)
return answer
