-- Check whether the keys are ours and of which format. One step, because others may open the same store at the same time.
--
-- KEYS     see constants.lua
-- ARGV     the format that we know, 'migrate' (note it if there is none, or an older one) or 'check', the keys' types as JSON
-- returns  {'foreign', key, its type}, {'damaged', key, its type} if the other keys are ours, {'foreign rows'}, {'empty'}, or {'format', its number}
local types = cjson.decode(ARGV[3])
for number, key in ipairs(KEYS) do
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= types[number] then
    local ours = redis.pcall('HGET', meta, 'format')
    return { type(ours) == 'string' and match(ours, '^%d+$') and 'damaged' or 'foreign', key, found }
  end
end
local noted = call('HGET', meta, 'format')
if not noted and call('EXISTS', rows) == 1 then return { 'foreign rows' } end
if ARGV[2] == 'migrate' then
  if not noted or (match(noted, '^%d+$') and tonumber(noted) < tonumber(ARGV[1])) then
    noted = ARGV[1]
    call('HSET', meta, 'format', noted)
  end
end
if not noted then return { 'empty' } end
return { 'format', noted }
