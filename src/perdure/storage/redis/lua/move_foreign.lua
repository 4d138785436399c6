-- Rename keys of another type than ours, so that they stop nothing. The audit makes what was there again from the rows, as far as
-- that is possible.
--
-- KEYS     see constants.lua; then, in the same order, where each of them is moved to
-- ARGV     now, the names of the keys and their types as JSON
-- returns  the names of those that were moved
local now, names, types, moved = time_of_call(ARGV[1]), cjson.decode(ARGV[2]), cjson.decode(ARGV[3]), {}
for number, name in ipairs(names) do
  local key = KEYS[number]
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= types[number] then
    call('RENAME', key, KEYS[number + #names])
    moved[#moved + 1] = number
  end
end
local told = {}
for place, number in ipairs(moved) do
  told[place] = names[number]
  call('HSET', unreadable, 'v' .. names[number] .. '\0' .. KEYS[number + #names], pack('<d', now) .. 'moved there whole')
end
if #moved > 0 then
  note_format()
  if call('EXISTS', heads) == 0 then make_heads() end
  call('HSET', meta, 'miscounted', '1', 'damaged', '1')
end
return told
