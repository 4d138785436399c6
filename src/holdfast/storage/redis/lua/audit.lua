-- Look at some rows and put those back that have lost a place in an index, and at some of what stands beside the rows. A script
-- that fails in the middle, or a server that was moved while keys were missing, can leave such; they would never be claimed.
--
-- KEYS     see basics.lua
-- ARGV     now, origin, about how many rows, then where to go on ('0': from the start) in rows, limits, gates, accounts
-- returns  {how many rows were put back, where to go on in each}
local DAY = 86400000000 -- that starts are remembered longer than they count: the clock may go back
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
  counted = {} -- a row is counted by its state, wherever it stands
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

local put_back = {}
local found = scanned('HSCAN', rows)
for number = 1, #found, 2 do
  local row = read(found[number], found[number + 1])
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
    if forgotten(row) then note(put_back, unsettled, 0, row[ID]) end
  end
end
gone, came = {}, put_back

-- ---- limits: slots of nobody, starts that are long past, and gates that may be open ----------------------------------------
local function holds(id, key)
  load({ id })
  local row = known[id]
  if not row or not has(row, HELD) or not has(row, LIMITED) then return false end
  for _, limit in ipairs(limits_of((more_of(row)))) do
    if limit.key == key then return true end
  end
  return false
end

local listed = scanned('ZSCAN', limits)
for number = 1, #listed, 2 do
  local member = listed[number]
  local kind, key = sub(member, 1, 1), match(member, '^[^%z]*', 2)
  if kind == 's' and not holds(sub(member, -16), key) then
    note(gone, limits, member)
    freed[key] = true
  elseif kind == 'n' then
    local at, window = parse('>I8I8', member, #key + 3)
    if at + window - 2 * 2251799813685248 + DAY <= now then note(gone, limits, member) end
  end
end
local opening = {}
local known_gates = scanned('HSCAN', gates)
for number = 1, #known_gates, 2 do
  local field = known_gates[number]
  if sub(field, 1, 1) == 'c' then opening[sub(field, 2)] = true else touched[sub(field, 2)] = true end
end

-- ---- accounts of tenants who wait for no turn ----------------------------------------------------------------------------
local balances = scanned('HSCAN', accounts)
for number = 1, #balances, 2 do
  local floor = match(balances[number], '^([^%z]*%z[^%z]*)%z')
  local lowest = floor and call('HGET', accounts, floor)
  if lowest and tonumber(balances[number + 1]) <= tonumber(lowest) then note(unset, accounts, balances[number]) end
end

flush()
if next(opening) or next(touched) or next(freed) then keep_gates(now, nil, opening) end
publish(origin)
return { mended, unpack(cursors) }
