-- Whether the keys are ours and of which format; in one step, since others may open the same store at the same time. What an
-- older format wrote otherwise is brought up.
--
-- KEYS     see basics.lua
-- ARGV     the format that we know, 'migrate' (bring an older one up to it) or 'check', the keys' types as JSON
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

-- Up to format 2 a hold under a key was a member of `limits` (s, key NUL id); now their number is kept (see places.lua).
while noted == ARGV[1] do
  local members = call('ZRANGEBYLEX', limits, '[s', '(t', 'LIMIT', 0, AT_ONCE)
  if #members == 0 then break end
  call('ZREMRANGEBYLEX', limits, '[s', '[' .. members[#members])
  for _, member in ipairs(members) do call('HINCRBY', gates, slot_of(match(member, '^[^%z]*', 2)), 1) end
end

-- Up to format 3 the lanes had no heads.
if noted == ARGV[1] and call('EXISTS', heads) == 0 then make_heads() end

-- Up to format 4 the heads of lines were known by their queue only.
if noted == ARGV[1] and #call('ZRANGEBYLEX', limits, '[q', '(r', 'LIMIT', 0, 1) == 0 then
  local from = '[o'
  while true do
    local found = call('ZRANGEBYLEX', limits, from, '(p', 'LIMIT', 0, AT_ONCE)
    for _, head in ipairs(found) do
      local over_queues, queue = head_over_queues(head)
      if call('SISMEMBER', paused, queue) == 0 then call('ZADD', limits, 0, over_queues) end
    end
    if #found < AT_ONCE then break end
    from = '(' .. found[#found]
  end
end
return { 'format', noted }
