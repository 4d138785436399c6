-- Read entries of a kind.
--
-- KEYS     see constants.lua
-- ARGV     now, kind, 'names', 'due' or 'all', limit, job ('': of any), then names
-- returns  name, text (see kv.lua) of each, the earliest first if they are due, else by name
local now, kind, which, limit, job = time_of_call(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local answer = {}

local function add_entries(fields, most)
  each_slice(fields, AT_ONCE, function(from, to)
    for number, text in ipairs(call('HMGET', kv, unpack(fields, from, to))) do
      local row = text and parse_entry(text)
      -- an unreadable one is in the answer too, and Python sets it aside
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
    local members, fields = call('ZRANGEBYLEX', kv_index, from, to, 'LIMIT', 0, math.min(limit, AT_ONCE)), {}
    if #members == 0 then return end
    for number, member in ipairs(members) do fields[number] = kind .. '\0' .. sub(member, behind + 1) end
    add_entries(fields, limit)
    from = '(' .. members[#members]
  end
end

if which ~= 'names' then reset_scores(kv_index) end -- or a job would not find the steps that it has done
if which == 'names' then
  local fields = {}
  for number = 6, #ARGV do fields[number - 5] = kind .. '\0' .. ARGV[number] end
  add_entries(fields, #fields)
elseif which == 'due' then
  local prefix = 'd' .. kind .. '\0'
  walk('[' .. prefix, '(' .. prefix .. sortable(now + 1), #prefix + 8)
elseif job ~= '' then
  local prefix = 'j' .. job .. kind .. '\0'
  walk('[' .. prefix, after_prefix(prefix), #prefix)
else
  local prefix = 'n' .. kind .. '\0'
  walk('[' .. prefix, after_prefix(prefix), #prefix)
end
return answer
