-- Check some rows and put those back that are missing in an index, and check some limits, gates, accounts and creation times.
-- A script that fails in the middle, or a slot migration with missing keys, can leave such rows; they would never be claimed.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, about how many rows, then where to go on ('0': from the start) in rows, limits, gates, accounts, created
-- returns  {how many rows were put back, where to go on in each}
local DAY = 86400000000 -- that starts are remembered longer than they count: the clock may go back
local PAUSE = 6000 -- microseconds for every hold until all are counted again: that takes about a thousandth of it
local now, origin, count = time_of_call(argument()), argument(), argument()
local mended, cursors = 0, {}
local miscounted = call('HEXISTS', meta, 'miscounted') == 1

local function scan(command, key)
  local answer = call(command, key, argument(), 'COUNT', count)
  cursors[#cursors + 1] = answer[1]
  return answer[2]
end

-- ---- rows --------------------------------------------------------------------------------------------------------------
-- Whether a set holds a member with this score.
local function is_in_index(key, score, member)
  local found = call('ZSCORE', key, member)
  return found and tonumber(found) == tonumber(score)
end

local function lacks_index(row)
  removals, additions = {}, {}
  enter_indexes(row)
  local lacking = false
  for key, list in pairs(additions) do
    for number = 1, #list, 2 do
      lacking = lacking or not is_in_index(key, list[number], list[number + 1])
    end
  end
  if not call('ZSCORE', created, row[ID]) then
    append(additions, created, details(row).created_at, row[ID])
    lacking = true
  end
  count_changes, slot_changes = {}, {} -- a row is counted by its state and hold, wherever it stands
  return lacking
end

-- Whether an ended job has followers who do not know it yet.
local function is_unresolved(row)
  if not has(row, FOLLOWED) or row[STATE] <= RUNNING then return false end
  local _, next_id = more_of(row)
  local stays = row[STATE] == DEAD_STATE and next_id == '' and not has(row, HIDDEN)
  local prefix = 'o' .. row[ID] .. (stays and 'f' or '')
  local edge = call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1]
  return edge and not call('ZSCORE', unresolved, row[ID])
end

local repairs, visited_lanes = {}, {} -- looked_at: lanes of the rows

-- The parents that a job was enqueued with; false if its body cannot be read. A name that is no id counts as a job that is not
-- stored.
local function parents_in_body(id)
  local AFTER = 10 -- where it stands in a body: see `Body` in records.py
  local readable, after = pcall(function() return cjson.decode(cmsgpack.unpack(call('HGET', jobs, id))[AFTER]) end)
  if not readable or type(after) ~= 'table' then return false end
  local parents = {}
  for number, name in ipairs(after) do
    local digits = string.gsub(tostring(name), '-', '')
    local is_id = #digits == 32 and not match(digits, '%X')
    parents[number] = is_id and string.gsub(digits, '..', function(pair) return string.char(tonumber(pair, 16)) end)
      or string.rep('\255', 16)
  end
  return parents
end

-- Release a blocked job that waits for no parent.
local function release_blocked(row)
  removals, additions = {}, {}
  leave_indexes(row)
  set_state(row, details(row).run_at > now and SCHEDULED or READY)
  row[VERSION] = row[VERSION] + 1
  reinsert(row)
  write_all()
end

-- Make the edges of a blocked job again from what it was enqueued to wait for. `open`: the parents to which it has edges.
local function make_edges(row, open)
  local found, parents = details(row), parents_in_body(row[ID])
  if not parents then
    mark_unreadable(row[ID])
    return false
  end
  local known, count = {}, 0
  for _, list in ipairs({ open, parents }) do
    for _, parent in ipairs(list) do
      if not known[parent] then
        known[parent], count = true, count + 1
        append(repairs, edges, 0, 'o' .. parent .. (has(row, FINISHED) and 'f' or 's') .. row[ID])
        append(repairs, edges, 0, 'c' .. row[ID] .. parent)
        append(repairs, unresolved, 0, parent)
      end
    end
  end
  found.waits = count
  row[REST_TEXT] = rest_of(found)
  append(field_writes, rows, row[ID], pack_row(row))
  return true
end

-- Whether the edges of a parent of a blocked job must be resolved: the parent is not stored, or is not marked as followed, or the
-- edge cannot be found from its side. `is_unresolved` finds parents that have ended.
local function is_unaware(parent, row)
  local other = 'o' .. parent .. (has(row, FINISHED) and 'f' or 's') .. row[ID]
  if not call('ZSCORE', edges, other) then
    append(repairs, edges, 0, other)
    return true
  end
  local text = call('HGET', rows, parent)
  local before = text and read_row(parent, text)
  return not text or (before and not has(before, FOLLOWED))
end

-- A blocked job waits for as many as it has open edges, and its parents know of it. Gives whether that was put right.
local function check_edges(row)
  local prefix = 'c' .. row[ID]
  local from, to = '[' .. prefix, '[' .. prefix .. string.rep('\255', 16)
  local waits, count = details(row).waits, call('ZLEXCOUNT', edges, from, to)
  if not has(row, WAITED) then
    if waits == 0 and count == 0 then release_blocked(row) end
    return waits == 0 and count == 0
  end
  local lost, open, mended = count == 0 or count ~= waits, {}, false
  for number, member in ipairs(call('ZRANGEBYLEX', edges, from, to, 'LIMIT', 0, lost and -1 or AT_ONCE)) do
    open[number] = sub(member, 18)
  end
  if lost then return make_edges(row, open) end
  for _, parent in ipairs(open) do
    if is_unaware(parent, row) and not call('ZSCORE', unresolved, parent) then
      append(repairs, unresolved, 0, parent)
      mended = true
    end
  end
  return mended
end

-- Shorten a lease that was given long after now. lapsed.lua handles a clock that went back; another program wrote this one.
local function check_lease(row)
  if not has(row, HELD) or row[LEASED_UNTIL] <= now + row[LEASE] + DAY then return end
  row[LEASED_UNTIL] = now + row[LEASE]
  append(repairs, leases, row[LEASED_UNTIL], row[ID])
  append(field_writes, rows, row[ID], pack_row(row))
end

local function audit_row(row)
  check_lease(row)
  local before = ready_queues
  ready_queues = {}
  local lacks = lacks_index(row)
  for _, member in ipairs(additions[lanes] or {}) do visited_lanes[lane_of(tostring(member)) or ''] = true end
  if lacks then
    mended = mended + 1
    for key, list in pairs(additions) do
      for _, value in ipairs(list) do append(repairs, key, value) end
    end
    for queue in pairs(ready_queues) do before[queue] = true end
  end
  ready_queues = before
  if is_unresolved(row) then append(repairs, unresolved, 0, row[ID]) end
  if row[STATE] == BLOCKED and check_edges(row) then mended = mended + 1 end
end

local found = scan('HSCAN', rows)
for number = 1, #found, 2 do
  local id = found[number]
  local row = #id == 16 and read_row(id, found[number + 1])
  if not row or call('HEXISTS', jobs, id) == 0 then
    mark_unreadable(id)
  else
    audit_row(row)
  end
end
removals, additions = {}, repairs

-- ---- limits: starts that are long past, and gates that may be open ---------------------------------------------------------
local listed = scan('ZSCAN', limits)
for number = 1, #listed, 2 do
  local member = listed[number]
  local kind, key = sub(member, 1, 1), match(member, '^[^%z]*', 2)
  if kind == 'n' then
    local whole = #member == #key + 38
    local at, window = 0, 0
    if whole then at, window = parse('>I8I8', member, #key + 3) end
    if not whole or at + window - 2 * 2251799813685248 + DAY <= now then append(removals, limits, member) end
  elseif not match(kind, '[bopqt]') then
    append(removals, limits, member) -- nobody's
  end
end
local opening, used = {}, {} -- used: keys that are said to have holds
local known_gates = scan('HSCAN', gates)
for number = 1, #known_gates, 2 do
  local kind, name = sub(known_gates[number], 1, 1), sub(known_gates[number], 2)
  if kind == 'c' then
    opening[name] = true
  elseif kind == 's' then
    used[name] = true
  elseif kind == 'h' then
    changed_lines[name] = true
  else
    append(field_removals, gates, known_gates[number])
  end
end

-- ---- accounts of tenants who wait for no turn ----------------------------------------------------------------------------
local balances = scan('HSCAN', accounts)
for number = 1, #balances, 2 do
  local floor = match(balances[number], '^([^%z]*%z[^%z]*)%z')
  local lowest, balance = floor and number_in(accounts, floor), number_in(accounts, balances[number])
  if not balance or (lowest and balance <= lowest) then append(field_removals, accounts, balances[number]) end
end

-- ---- jobs that have lost their row -----------------------------------------------------------------------------------------
local births = scan('ZSCAN', created)
for number = 1, #births, 2 do
  if call('HEXISTS', rows, births[number]) == 0 then mark_unreadable(births[number]) end
end

write_all()
visited_lanes[''] = nil
for lane in pairs(visited_lanes) do update_head(lane) end

-- ---- how many hold under each key ------------------------------------------------------------------------------------------
-- Counted anew from the holds themselves: whatever was left by a script that failed, or written by others, is right again.
local function is_due()
  local last = number_in(meta, 'recounted') or NONE
  return miscounted or last > now or now - last >= PAUSE * call('ZCARD', leases)
end

local function count_anew()
  local found = {}
  for _, text in ipairs(row_texts(call('ZRANGE', leases, 0, -1))) do
    local row = text and #text > 2 and band(parse('<H', text, 2), HELD + LIMITED) == HELD + LIMITED and read_row('', text)
    if row then
      for _, key in pairs(limits_of((more_of(row))).slots) do found[key] = (found[key] or 0) + 1 end
    end
  end
  for key in pairs(used) do found[key] = found[key] or 0 end
  for key, number in pairs(found) do
    local slot = slot_of(key)
    if tonumber(call('HGET', gates, slot) or 0) ~= number then
      if number > 0 then call('HSET', gates, slot, number) else call('HDEL', gates, slot) end
      freed_keys[key] = true
    end
  end
  call('HSET', meta, 'recounted', string.format('%.0f', now))
end

if is_due() then count_anew() end

-- ---- how many jobs there are ---------------------------------------------------------------------------------------------
-- Counts by lane and state are made by every script that moves jobs. Only where somebody else wrote one, they are counted anew; in
-- a store with very many jobs that would stop everybody, and they stay as they are until there are fewer.
local FEW = 20000

local function count_jobs()
  local found, cursor = {}, '0'
  repeat
    local answer = call('HSCAN', rows, cursor, 'COUNT', AT_ONCE)
    cursor = answer[1]
    for number = 2, #answer[2], 2 do
      local row = read_row('', answer[2][number])
      if row and not has(row, HIDDEN) then
        local field = row[LANE] .. '\0' .. row[STATE]
        found[field] = (found[field] or 0) + 1
      end
    end
  until cursor == '0'
  call('DEL', counts)
  for field, number in pairs(found) do call('HSET', counts, field, number) end
end

-- How many wait in each queue is the sum of the counts of its lanes.
local function sum_depths()
  local deep, all = {}, call('HGETALL', counts)
  for number = 1, #all, 2 do
    local queue, state = match(all[number], '^([^%z]*)%z.*%z(%d)$')
    local count = tonumber(all[number + 1])
    if state and tonumber(state) <= READY and count then deep[queue] = (deep[queue] or 0) + count end
  end
  local noted = call('HGETALL', depths)
  for number = 1, #noted, 2 do
    if not deep[noted[number]] then call('HDEL', depths, noted[number]) end
  end
  for queue, depth in pairs(deep) do
    if number_in(depths, queue) ~= depth then call('HSET', depths, queue, depth) end
  end
end

if miscounted then
  if call('HLEN', rows) <= FEW then count_jobs() end
  sum_depths()
  call('HDEL', meta, 'miscounted')
end
if next(opening) or next(changed_lines) or next(freed_keys) then update_gates(now, nil, opening, true) end
publish_signals(origin)
return { mended, unpack(cursors) }
