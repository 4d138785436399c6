-- Move values that cannot be read out of a hash, if they are as they were found.
--
-- KEYS     see constants.lua
-- ARGV     now, the name of the hash, its number among the keys, then for each value: field, value
-- returns  how many were moved
local now, name, key, moved = time_of_call(ARGV[1]), ARGV[2], KEYS[tonumber(ARGV[3])], 0
for at = 4, #ARGV, 2 do
  if call('HGET', key, ARGV[at]) == ARGV[at + 1] then
    set_value_aside(name, key, ARGV[at], ARGV[at + 1], now)
    moved = moved + 1
  end
end
return moved
