-- How many jobs of a key or chain are visible and in some states: a piece of the count.
--
-- KEYS     see constants.lua
-- ARGV     the name and its NUL, the member to continue behind ('': from the first), an id that does not count ('': none), rows to
--          read, states as eight digits 0 or 1
-- returns  {how many, the last member that was read ('': there are no more)}
local name, last, other, budget, states = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local WANTED = 49 -- the digit 1
local found, looked = 0, 0

local function fits(id, text)
  if not text or id == other then return false end
  local state, marks = string.byte(text, 1, 2) -- the beginning of HEAD
  return marks and band(marks, HIDDEN) == 0 and string.byte(states, state) == WANTED
end

while looked < budget do
  local from = last == '' and '[' .. name or '(' .. last
  local members = call('ZRANGEBYLEX', named, from, after_prefix(name), 'LIMIT', 0, AT_ONCE)
  local ids = {}
  for number, member in ipairs(members) do ids[number] = sub(member, -16) end
  for number, text in ipairs(row_texts(ids)) do
    if fits(ids[number], text) then found = found + 1 end
  end
  if #members < AT_ONCE then return { found, '' } end
  looked, last = looked + #members, members[#members]
end
return { found, last }
