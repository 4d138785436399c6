-- Write the index of kv entries again where it is lost.
--
-- KEYS     see constants.lua
-- ARGV     where the last scan ended ('0': begin with the first entry), about how many entries to check
-- returns  {where this scan ended ('0': behind the last entry), how many entries were repaired}
local told = call('HSCAN', kv, ARGV[1], 'COUNT', ARGV[2])
local repaired_entries, lost = 0, false

local function repair_member(key, member)
  if call('ZSCORE', key, member) then return end
  call('ZADD', key, 0, member)
  lost = true
end

for at = 1, #told[2], 2 do
  local field, row = told[2][at], parse_entry(told[2][at + 1])
  if row and match(field, '^[^%z]*%z[^%z]*$') then
    lost = false
    move_entry(field, row, repair_member)
    if lost then repaired_entries = repaired_entries + 1 end
  end
end
return { told[1], repaired_entries }
