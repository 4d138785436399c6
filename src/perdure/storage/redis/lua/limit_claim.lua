-- Part of exchange: claims jobs under limits. storage/rules/limits.py says which may start; limit_gates.lua keeps the gates.
--
-- A claim merges the heads of open gates, best first. A gate that it finds full is closed: from then on no claim reads it
-- until a hold under its key is given up, or its rate lets the next one start. Its slot says how many run under a key (see indexes.lua);
-- starts are remembered one by one (n, key NUL instant window id attempt). Made anew where it is needed.
-- `fresh_of`: what is known of a row by its text alone, if it was never claimed (see exchange.lua).
local function limit_claims(now, fresh_of)
  local CLOSED_AT_ONCE = 128 -- gates that one claim closes before it leaves the others to the next one
  local OFFSET = 2251799813685248 -- see `sortable`
  local used, closed, seen, opening, most_of, stuck = {}, {}, {}, {}, {}, {}
  local closures, dropped = 0, false
  local past, went_back = {}, false -- starts that no longer count, by key; whether the clock did

  -- ---- what is left under a key --------------------------------------------------------------------------------------
  local function use_of(key)
    local found = used[key]
    if not found then
      local slot = slot_of(key)
      local running = call('HEXISTS', gates, slot) == 0 and 0 or number_in(gates, slot)
      if not running then call('HSET', meta, 'miscounted', '1') end
      found = { running = running or MOST, started = 0 } -- nobody starts while nobody knows how many run
      used[key] = found
    end
    return found
  end

  local function starts_since(key, instant) return 'n' .. key .. '\0' .. sortable(math.max(0, instant)) end

  -- Starts after now: the clock went back, and from now on they are of this moment.
  local function pull_back(key)
    local use, all = use_of(key), 'n' .. key .. '\0'
    if use.pulled then return end
    use.pulled = true
    for _, member in ipairs(call('ZRANGEBYLEX', limits, '[' .. starts_since(key, now + 1), after_prefix(all))) do
      append(removals, limits, member)
      append(additions, limits, 0, all .. sortable(now) .. sub(member, #all + 9))
    end
  end

  -- When a rate lets the next one start; nil: now.
  local function opens_at(limit)
    local use, all, since = use_of(limit.key), 'n' .. limit.key .. '\0', '[' .. starts_since(limit.key, now - limit.window + 1)
    pull_back(limit.key)
    local over = call('ZLEXCOUNT', limits, since, after_prefix(all)) + use.started + 1 - limit.starts
    if over <= 0 then return nil end
    local member = call('ZRANGEBYLEX', limits, since, after_prefix(all), 'LIMIT', over - 1, 1)[1]
    local at = member and #member >= #all + 8 and parse('>I8', member, #all + 1) - OFFSET or now
    return math.min(at, now) + limit.window
  end

  local function has_rate(limit) return limit.starts ~= NONE and limit.window ~= NONE end

  -- Why no job of a gate may start; nil: one may.
  local function why_closed(gate)
    for _, limit in ipairs(limits_of(gate)) do
      if limit.most ~= NONE then
        most_of[limit.key] = math.max(most_of[limit.key] or 0, limit.most)
        if use_of(limit.key).running >= limit.most then return { key = limit.key } end
      end
      local opens = has_rate(limit) and opens_at(limit)
      if opens then return { key = limit.key, opens_at = opens } end
    end
  end

  -- So many more hold under the keys of a gate.
  local function hold(gate, number)
    for _, key in pairs(limits_of(gate).slots) do use_of(key).running = use_of(key).running + number end
  end

  local function spend(gate, id, attempt)
    hold(gate, 1)
    for _, limit in ipairs(limits_of(gate)) do
      local use, key = use_of(limit.key), limit.key
      if has_rate(limit) then
        use.started = use.started + 1
        append(additions, limits, 0,
          'n' .. key .. '\0' .. sortable(now) .. sortable(limit.window) .. id .. pack('>I4', attempt))
        past['n' .. key .. '\0'] = starts_since(key, now - limit.window + 1)
      end
    end
  end

  -- ---- who waits -----------------------------------------------------------------------------------------------------
  local function pop(heap)
    local source = heap[1]
    heap[1] = heap[#heap]
    heap[#heap] = nil
    if #heap > 1 then sift_down(heap, 1) end
    return source
  end

  local function kind_of(want) return want.alone and 's' or 'r' end

  local function open_heads(want)
    local heap, kind = {}, kind_of(want)
    local over_queues = not want.queues
    local found = over_queues and groups_of(want, limits, 'q' .. kind) or lanes_of(want, limits, 'o' .. kind)
    for _, lane in ipairs(found) do
      local source = open_source(limits, lane, 8, now)
      source.any, source.over_queues = true, over_queues
      push(heap, source)
    end
    return heap
  end

  -- The line at whose head a source stands, and its queue if it is known without a look at the line.
  local function line_at(source, member)
    if not source.any then return sub(source.lane, 2) end
    if not source.over_queues then return sub(member, -16) .. sub(source.lane, 2) end
    local queue = match(member, '^([^%z]*)%z', #source.lane + 29)
    return sub(member, -16) .. sub(source.lane, 2, 3) .. queue .. '\0' .. sub(source.lane, 4), queue
  end

  local function listed(names, name)
    if not names then return true end
    for _, each in ipairs(names) do
      if each == name then return true end
    end
    return false
  end

  -- Whether a want asks for the jobs of a line: gate, kind, version, queue NUL task NUL routing key NUL.
  local function wants_line(want, line)
    local queue, task, routing = match(line, '^([^%z]*)%z([^%z]*)%z([^%z]*)%z', 19)
    return sub(line, 17, 17) == kind_of(want) and string.byte(line, 18) <= want.newest and not is_paused(queue)
      and listed(want.queues, queue) and listed(want.tasks, task) and (not want.routing or want.routing == routing)
  end

  -- Closed gates that this script has not visited, in the order in which they are found again.
  local function unseen_gates(from, to)
    local found, skipped = {}, 0
    while #found < REOPENED do
      local members = call('ZRANGEBYLEX', limits, from, to, 'LIMIT', skipped, REOPENED)
      for _, member in ipairs(members) do
        local gate = sub(member, -16)
        if not seen[gate] and #found < REOPENED then found[#found + 1] = gate end
      end
      if #members < REOPENED then break end
      skipped = skipped + REOPENED
    end
    return found
  end

  -- Open more gates: those whose time has come, and the longest closed of keys that have room.
  local function open_more(work)
    local keys = {}
    for key, most in pairs(most_of) do
      if use_of(key).running < most and not stuck[key] then keys[#keys + 1] = key end
    end
    local function open(gates_found, key)
      for _, gate in ipairs(gates_found) do
        seen[gate], opening[gate] = key, true
        work(gate)
      end
    end
    open(unseen_gates('[t', '(t' .. sortable(now + 1)), true)
    for _, key in ipairs(keys) do open(unseen_gates('[b' .. key .. '\0', after_prefix('b' .. key .. '\0')), key) end
  end

  -- Let those of more gates come in. Gives whether there are any.
  local function open_for_want(heap, want)
    local any = false
    open_more(function(gate)
      any = true
      for _, line in ipairs(lines_of(gate)) do
        if wants_line(want, line) then push(heap, open_source(limits, 'p' .. line, 8, now)) end
      end
    end)
    return any
  end

  -- A head that is not what the index says.
  local function drop(line, place, head)
    local member = 'p' .. line .. place
    dropped = true
    call('ZREMRANGEBYLEX', limits, '[' .. member, '[' .. member .. string.rep('\255', 9))
    if head then call('ZREM', limits, head) end
    changed_lines[line] = true
  end

  -- The text of a row at the head of a source, read with those behind it.
  local texts = {}

  local function text_of(source, id)
    if texts[id] == nil then
      local ids, at = {}, #source.lane + 13
      for number = source.at, #source.members do ids[#ids + 1] = sub(source.members[number], at, at + 15) end
      for number, text in ipairs(row_texts(ids)) do texts[ids[number]] = text end
    end
    return texts[id]
  end

  -- The best candidate, which is taken out: its id (nil: it cannot run), its row or, in its place, what is known of a fresh
  -- one, and its gate. `wanted`: how many may follow.
  local function next_candidate(heap, wanted)
    local source = pop(heap)
    local member, lane = source.member, source.lane
    local place = sub(member, #lane + 1, #lane + 28)
    local id = sub(place, 13)
    local line, queue = line_at(source, member)
    if queue and is_paused(queue) then -- it has been left here
      call('ZREM', limits, member)
      push(heap, source)
      return nil
    end
    local text = text_of(source, id)
    if source.any then -- a head: those behind it follow
      local behind = open_source(limits, 'p' .. line, #heap == 0 and wanted or 8, now)
      behind.from = '(p' .. line .. place .. string.rep('\255', 9)
      if not closed[sub(line, 1, 16)] then push(heap, behind) end
    end
    local gate = sub(line, 1, 16)
    if source.any or not closed[gate] then push(heap, source) end
    if closed[gate] or claimed_members[id] then return nil end
    local fresh = text and rows_by_id[id] == nil and fresh_of(text)
    if fresh and fresh.line == line then return id, nil, fresh, gate end
    local row = row_with_id(id, text)
    if not row or row[STATE] ~= READY or not has(row, PARKED) or line_of(row) ~= line then
      drop(line, place, source.any and member)
      return nil
    end
    if may_expire(row) and details(row).expires_at <= now then return nil end
    return id, row, nil, gate
  end

  -- How many may start under limits that only say how many run at once; 0: one of them says more.
  local function plain_room(gate)
    local room = AT_ONCE
    for _, limit in ipairs(limits_of(gate)) do
      if limit.most == NONE or limit.starts ~= NONE then return 0 end
      room = math.min(room, limit.most - use_of(limit.key).running)
    end
    return room
  end

  -- If one line has the only candidates, its jobs that were never claimed start one after the other. Returns how many.
  local function start_in_line(heap, limit, start)
    local source, started = heap[1], 0
    local at, line, gate = #source.lane + 13, sub(source.lane, 2), nil
    while started < limit do
      local id = sub(source.member, at, at + 15)
      local text = text_of(source, id)
      local fresh = text and rows_by_id[id] == nil and not claimed_members[id] and fresh_of(text)
      if not fresh or fresh.line ~= line then break end
      if not gate then
        gate, limit = fresh.gate, math.min(limit, plain_room(fresh.gate))
        if limit <= 0 then break end
      end
      claimed_members[id] = true
      start(id, nil, fresh)
      started = started + 1
      source.member = head_of(source)
      if not source.member then break end
    end
    if started > 0 then hold(gate, started) end
    if source.member then keys_of(source, source.member) else heap[1] = nil end
    return started
  end

  -- Let the best jobs of a want start, at most so many. Gives whether another one might start now, if that is known.
  local function admit(want, limit, start)
    local heap, started = open_heads(want), 0
    while true do
      if #heap == 1 and not heap[1].any and started < limit and not closed[sub(heap[1].lane, 2, 17)] then
        started = started + start_in_line(heap, limit - started, start)
      end
      if not heap[1] and not open_for_want(heap, want) then return 'no' end
      local id, row, fresh, gate
      if heap[1] then id, row, fresh, gate = next_candidate(heap, math.max(8, math.min(limit - started, AT_ONCE))) end
      if id then
        local limits_text = fresh and fresh.gate or more_of(row)
        local why = why_closed(limits_text)
        if why then
          closed[gate] = why
          closures = closures + 1
          if closures >= CLOSED_AT_ONCE then return 'who knows' end
          if seen[gate] == why.key then stuck[why.key] = true end
        elseif started == limit then
          return 'yes'
        else
          claimed_members[id] = true
          start(id, row, fresh)
          spend(limits_text, id, row and row[ATTEMPT] or 1)
          started = started + 1
        end
        seen[gate] = seen[gate] or true
      end
    end
  end

  -- Write what was learnt about gates; the rest must be written.
  local function finish()
    open_more(function() end)
    for gate in pairs(closed) do opening[gate] = nil end
    update_gates(now, closed, opening, dropped)
    if went_back or next(closed) or next(past) then call('HSET', meta, 'admitted', string.format('%.0f', now)) end
    for all, since in pairs(past) do call('ZREMRANGEBYLEX', limits, '[' .. all, '(' .. since) end
  end

  -- Open the gates whose time has come; all that wait for a time, if the clock went back.
  local function open_due()
    went_back = (number_in(meta, 'admitted') or NONE) > now
    local due, to, most = {}, '(t' .. sortable(now + 1), REOPENED
    if went_back then to, most = '(u', -1 end
    for _, member in ipairs(call('ZRANGEBYLEX', limits, '[t', to, 'LIMIT', 0, most)) do due[sub(member, -16)] = true end
    if next(due) then update_gates(now, nil, due) end
  end

  -- When a rate opens a gate that has jobs for one of these wants; nil: there is none.
  local function next_opening(wants)
    local from = '[t'
    for _ = 1, 8 do
      local members = call('ZRANGEBYLEX', limits, from, '(u', 'LIMIT', 0, 64)
      for _, member in ipairs(members) do
        for _, line in ipairs(lines_of(sub(member, -16))) do
          for _, want in ipairs(wants) do
            if #member == 25 and wants_line(want, line) then return parse('>I8', member, 2) - OFFSET end
          end
        end
      end
      if #members < 64 then return nil end
      from = '(' .. members[#members]
    end
  end

  return { admit = admit, finish = finish, open_due = open_due, next_opening = next_opening }
end
