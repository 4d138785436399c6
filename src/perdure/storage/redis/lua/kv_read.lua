-- Texts of a kind.
--
-- KEYS     see basics.lua
-- ARGV     now, kind, 'names', 'due' or 'all', limit, job ('': of any), then names
-- returns  name, text (see shelving.lua) of each, the earliest first if they are due, else by name
local now, kind, which, limit, job = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local answer = {}

local function tell_fields(fields, most)
  slices(fields, AT_ONCE, function(from, to)
    for number, text in ipairs(call('HMGET', shelf, unpack(fields, from, to))) do
      local row = text and on_shelf(text)
      -- one that cannot be read is told too, and set aside then
      if text and #answer < 2 * most and (not row or job == '' or row.job == job) then
        answer[#answer + 1] = sub(fields[from + number - 1], #kind + 2)
        answer[#answer + 1] = text
      end
    end
  end)
end

-- Walk along an index, where names stand behind so many bytes.
local function walk(from, to, behind)
  while #answer < 2 * limit do
    local members, fields = call('ZRANGEBYLEX', shelved, from, to, 'LIMIT', 0, math.min(limit, AT_ONCE)), {}
    if #members == 0 then return end
    for number, member in ipairs(members) do fields[number] = kind .. '\0' .. sub(member, behind + 1) end
    tell_fields(fields, limit)
    from = '(' .. members[#members]
  end
end

if which == 'names' then
  local fields = {}
  for number = 6, #ARGV do fields[number - 5] = kind .. '\0' .. ARGV[number] end
  tell_fields(fields, #fields)
elseif which == 'due' then
  local prefix = 'd' .. kind .. '\0'
  walk('[' .. prefix, '(' .. prefix .. ordered(now + 1), #prefix + 8)
elseif job ~= '' then
  local prefix = 'j' .. job .. kind .. '\0'
  walk('[' .. prefix, beyond(prefix), #prefix)
else
  local prefix = 'n' .. kind .. '\0'
  walk('[' .. prefix, beyond(prefix), #prefix)
end
return answer
