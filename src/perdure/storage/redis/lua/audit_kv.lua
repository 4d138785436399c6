-- Write again what finds the texts of the shelf, where it is lost.
--
-- KEYS     see basics.lua
-- ARGV     where the last look ended ('0': begin with the first text), about how many texts to look at
-- returns  where this look ended ('0': behind the last text), how many texts were put right
local told = call('HSCAN', shelf, ARGV[1], 'COUNT', ARGV[2])
local put_right, lost = 0, false

local function find_or_put(key, member)
  if call('ZSCORE', key, member) then return end
  call('ZADD', key, 0, member)
  lost = true
end

for at = 1, #told[2], 2 do
  local field, row = told[2][at], on_shelf(told[2][at + 1])
  if row and match(field, '^[^%z]*%z[^%z]*$') then
    lost = false
    move_on_shelf(field, row, find_or_put)
    if lost then put_right = put_right + 1 end
  end
end
return { told[1], put_right }
