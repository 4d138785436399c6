-- List the jobs that still wait for these jobs.
--
-- KEYS     see constants.lua
-- ARGV     ids
-- returns  for each of them: the ids of those who wait for it, as one text
local answer = {}
for number, id in ipairs(ARGV) do
  local prefix, children = 'o' .. id, {}
  for _, member in ipairs(call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17))) do
    if #member == 34 then children[#children + 1] = sub(member, -16) end
  end
  answer[number] = table.concat(children)
end
return answer
