-- Look at some rows and put those back that have lost a place in an index, and at some of what stands beside the rows. A script
-- that fails in the middle, or a server that was moved while keys were missing, can leave such; they would never be claimed.
--
-- KEYS     see basics.lua
-- ARGV     now, origin, about how many rows, then where to go on ('0': from the start) in rows, limits, gates, accounts
-- returns  {how many rows were put back, where to go on in each}
local DAY = 86400000000 -- that starts are remembered longer than they count: the clock may go back
local PAUSE = 6000 -- microseconds for every hold until all are counted again: that takes about a thousandth of it
local now, origin, count = clock(argument()), argument(), argument()
local mended, cursors = 0, {}

local function scanned(command, key)
  local answer = call(command, key, argument(), 'COUNT', count)
  cursors[#cursors + 1] = answer[1]
  return answer[2]
end

-- ---- rows --------------------------------------------------------------------------------------------------------------
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
  counted, slots = {}, {} -- a row is counted by its state and hold, wherever it stands
  return lacking
end

-- Whether an ended job has followers who do not know it yet.
local function forgotten(row)
  if not has(row, FOLLOWED) or row[STATE] <= RUNNING then return false end
  local _, next_id = more_of(row)
  local stays = row[STATE] == DEAD_STATE and next_id == '' and not has(row, HIDDEN)
  local prefix = 'o' .. row[ID] .. (stays and 'f' or '')
  local edge = call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1]
  return edge and not call('ZSCORE', unsettled, row[ID])
end

local put_back, looked_at = {}, {} -- looked_at: lanes of the rows
local found = scanned('HSCAN', rows)
for number = 1, #found, 2 do
  local row = read(found[number], found[number + 1])
  if call('HEXISTS', jobs, row[ID]) == 0 then
    redis.log(redis.LOG_WARNING, 'perdure: a row without a body is left as it is')
  else
    local before = woken
    woken = {}
    local lacks = missing(row)
    for _, member in ipairs(came[lanes] or {}) do looked_at[lane_of(tostring(member)) or ''] = true end
    if lacks then
      mended = mended + 1
      for key, list in pairs(came) do
        for _, value in ipairs(list) do note(put_back, key, value) end
      end
      for queue in pairs(woken) do before[queue] = true end
    end
    woken = before
    if forgotten(row) then note(put_back, unsettled, 0, row[ID]) end
  end
end
gone, came = {}, put_back

-- ---- limits: starts that are long past, and gates that may be open ---------------------------------------------------------
local listed = scanned('ZSCAN', limits)
for number = 1, #listed, 2 do
  local member = listed[number]
  local kind, key = sub(member, 1, 1), match(member, '^[^%z]*', 2)
  if kind == 's' then
    note(gone, limits, member) -- of a worker that knows format 2 and was not stopped; all holds are counted below
  elseif kind == 'n' then
    local at, window = parse('>I8I8', member, #key + 3)
    if at + window - 2 * 2251799813685248 + DAY <= now then note(gone, limits, member) end
  end
end
local opening, used = {}, {} -- used: keys that are said to have holds
local known_gates = scanned('HSCAN', gates)
for number = 1, #known_gates, 2 do
  local kind, name = sub(known_gates[number], 1, 1), sub(known_gates[number], 2)
  if kind == 'c' then opening[name] = true elseif kind == 's' then used[name] = true else touched[name] = true end
end

-- ---- accounts of tenants who wait for no turn ----------------------------------------------------------------------------
local balances = scanned('HSCAN', accounts)
for number = 1, #balances, 2 do
  local floor = match(balances[number], '^([^%z]*%z[^%z]*)%z')
  local lowest = floor and call('HGET', accounts, floor)
  if lowest and tonumber(balances[number + 1]) <= tonumber(lowest) then note(unset, accounts, balances[number]) end
end

flush()
looked_at[''] = nil
for lane in pairs(looked_at) do keep_head(lane) end

-- ---- how many hold under each key ------------------------------------------------------------------------------------------
-- Counted anew from the holds themselves: whatever was left by a script that failed, or written by others, is right again.
local function is_due()
  local last = tonumber(call('HGET', meta, 'recounted') or NONE)
  return last > now or now - last >= PAUSE * call('ZCARD', leases)
end

local function count_anew()
  local found = {}
  for _, text in ipairs(texts_of(call('ZRANGE', leases, 0, -1))) do
    if text and band(parse('<H', text, 2), HELD + LIMITED) == HELD + LIMITED then
      for _, key in pairs(limits_of((more_of(read('', text)))).slots) do found[key] = (found[key] or 0) + 1 end
    end
  end
  for key in pairs(used) do found[key] = found[key] or 0 end
  for key, number in pairs(found) do
    local slot = slot_of(key)
    if tonumber(call('HGET', gates, slot) or 0) ~= number then
      if number > 0 then call('HSET', gates, slot, number) else call('HDEL', gates, slot) end
      freed[key] = true
    end
  end
  call('HSET', meta, 'recounted', string.format('%.0f', now))
end

if is_due() then count_anew() end
if next(opening) or next(touched) or next(freed) then keep_gates(now, nil, opening) end
publish(origin)
return { mended, unpack(cursors) }
