-- Jobs as their keys hold them, for unreadable.py.
--
-- KEYS     see constants.lua
-- ARGV     ids
-- returns  for each id: why its row cannot be read or false, row, body, outcome, errors, progress (false: there is none)
local answer = {}
for _, id in ipairs(ARGV) do
  local text, at = call('HGET', rows, id), #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = text and flaw_in(text) or false, text, call('HGET', jobs, id)
  for number, key in ipairs({ outcomes, errors, progress }) do answer[at + 3 + number] = call('HGET', key, id) end
end
return answer
