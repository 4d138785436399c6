-- Look at some rows and put those back that have lost a place in an index. A script that fails in the middle, or a server
-- that was moved while keys were missing, can leave such; they would never be claimed.
--
-- KEYS     see the prelude
-- ARGV     now, origin, where to go on ('0': from the start), about how many rows
-- returns  {where to go on, how many were put back}
local scanned = call('HSCAN', rows, ARGV[3], 'COUNT', ARGV[4])
local mended = 0

local function missing(row)
  gone, came = {}, {}
  place(row)
  local lacking = false
  for key, list in pairs(came) do
    for number = 2, #list, 2 do
      lacking = lacking or not call('ZSCORE', key, list[number])
    end
  end
  if not call('ZSCORE', created, row[ID]) then
    note(came, created, details(row).created_at, row[ID])
    lacking = true
  end
  counted = {} -- a row is counted by its state, wherever it stands
  return lacking
end

local put_back = {}
for number = 1, #scanned[2], 2 do
  local row = read(scanned[2][number], scanned[2][number + 1])
  if call('HEXISTS', jobs, row[ID]) == 0 then
    redis.log(redis.LOG_WARNING, 'holdfast: a row without a body is left as it is')
  else
    local before = woken
    woken = {}
    if missing(row) then
      mended = mended + 1
      for key, list in pairs(came) do
        for _, value in ipairs(list) do note(put_back, key, value) end
      end
      for queue in pairs(woken) do before[queue] = true end
    end
    woken = before
  end
end
gone, came = {}, put_back
if mended > 0 then flush() end
publish(ARGV[2])
return { scanned[1], mended }
