-- Note what began, then prolong leases; or only say whether holds stand.
--
-- KEYS     see basics.lua
-- ARGV     now, 'renew' or 'check', the lease that is asked for or '', number of notes of what began, the notes, then the holds (see HOLD)
-- returns  an answer per hold (see places.lua), as one text
local now, writes = clock(argument()), argument() == 'renew'
local lease = tonumber(argument())
local touched = note_started(tonumber(argument()))

local holds, ids = {}, {}
for number = arguments_read + 1, #ARGV do
  local hold = { parse(HOLD, ARGV[number]) }
  holds[#holds + 1] = hold
  ids[#ids + 1] = hold[1]
end
load(ids)
local answers, renewed = {}, false
for number, hold in ipairs(holds) do
  local row = known[hold[1]]
  local answer = standing(row, hold[2], hold[3])
  if answer == 0 and writes then
    row[LEASED_UNTIL] = now + (lease or row[LEASE])
    if lease and lease > row[LEASE] then
      row[LEASE], row[REST_TEXT] = lease, struct.pack('<d', lease) .. string.sub(row[REST_TEXT], 9) -- see FIRST
    end
    note(came, leases, row[LEASED_UNTIL], row[ID])
    touched[row[ID]] = row
    renewed = true
  end
  answers[number] = answer
end
for _, row in pairs(touched) do changed(row) end
if renewed then leases_given(now) end
if next(touched) then flush() end
return table.concat(answers)
