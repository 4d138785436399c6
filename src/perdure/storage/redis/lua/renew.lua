-- Write when handlers began, then renew leases; or only check holds.
--
-- KEYS     see constants.lua
-- ARGV     now, 'renew' or 'check', the lease that is asked for or '', number of notes of what began, the notes, then the holds (see HOLD)
-- returns  an answer per hold (see indexes.lua), as one text
local now, writes = time_of_call(argument()), argument() == 'renew'
local lease = tonumber(argument())
local changed_rows = apply_starts(tonumber(argument()))

local holds, ids = {}, {}
for number = arguments_read + 1, #ARGV do
  local hold = { parse(HOLD, ARGV[number]) }
  holds[#holds + 1] = hold
  ids[#ids + 1] = hold[1]
end
load_rows(ids)
local answers, renewed = {}, false
for number, hold in ipairs(holds) do
  local row = rows_by_id[hold[1]]
  local answer = check_hold(row, hold[2], hold[3])
  if answer == 0 and writes then
    row[LEASED_UNTIL] = now + (lease or row[LEASE])
    if lease and lease > row[LEASE] then
      row[LEASE], row[REST_TEXT] = lease, struct.pack('<d', lease) .. string.sub(row[REST_TEXT], 9) -- see FIRST
    end
    append(additions, leases, row[LEASED_UNTIL], row[ID])
    changed_rows[row[ID]] = row
    renewed = true
  end
  answers[number] = answer
end
for _, row in pairs(changed_rows) do save(row) end
if renewed then note_lease_time(now) end
if next(changed_rows) then write_all() end
return table.concat(answers)
