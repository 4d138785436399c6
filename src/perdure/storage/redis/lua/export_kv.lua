-- Export kv entries, by kind and name.
--
-- KEYS     see constants.lua
-- ARGV     kind NUL name to begin behind ('': from the first), limit
-- returns  kind NUL name, text (see kv.lua) of each
local answer, from = {}, ARGV[1] == '' and '[n' or '(n' .. ARGV[1]
local members = call('ZRANGEBYLEX', kv_index, from, '(o', 'LIMIT', 0, ARGV[2])
for _, member in ipairs(members) do
  local field = sub(member, 2)
  local text = call('HGET', kv, field)
  if text then
    answer[#answer + 1] = field
    answer[#answer + 1] = text
  end
end
return answer
