-- Part of every verb that moves jobs under limits: keeps their gates.
--
-- `limits` holds parked jobs in lines: p, gate, lane, sort key (see line_member). A gate is open or closed. The head of each line
-- of an open gate is there once more, as o, lane, place, gate: a claim merges these heads, and never reads jobs
-- behind a closed gate. A claim for every queue reads the same heads as q, kind and version, task NUL routing key NUL, place,
-- queue NUL, gate: one range for each task and routing key, however many queues there are. A paused queue has no q. `gates` knows the head of each line (h, line). A closed gate is noted there too (c, gate) with the
-- member of `limits` by which it is found again: b, key NUL closed_at gate when a key is used up, or t, opens_at gate. `gates`
-- also knows how many hold under a key (s, key).
local REOPENED = 64 -- gates that a hold which is given up lets look again, the longest closed first

-- The head of a line as a claim for every queue reads it, and its queue.
local function head_over_queues(head)
  local kind, queue, names, at = match(head, '^o(..)([^%z]*)%z([^%z]*%z[^%z]*%z)()')
  if not kind then return head, '' end
  return 'q' .. kind .. names .. sub(head, at, at + 27) .. queue .. '\0' .. sub(head, -16), queue
end

-- The lines of a gate.
local function lines_of(gate)
  local found, from = {}, '[p' .. gate
  if #gate ~= 16 then return found end
  while true do
    local member = call('ZRANGEBYLEX', limits, from, below_prefix('p' .. gate), 'LIMIT', 0, 1)[1]
    if not member then return found end
    local lane = match(member, '^[^%z]*%z[^%z]*%z[^%z]*%z', 20)
    if lane then
      local line = sub(member, 2, 19) .. lane
      found[#found + 1] = line
      from = '[p' .. sub(line, 1, -2) .. '\1'
    else
      from = '(' .. member -- nobody's
    end
  end
end

-- Bring the gates up to date with what was written. `closing`: why gates are closed, by gate; `opening`: gates to open; `sure`:
-- whether heads are to be looked for where they should stand.
local function update_gates(now, closing, opening, sure)
  local function refresh(line, is_closed)
    local gate, field = sub(line, 1, 16), 'h' .. line
    local before, first, head = call('HGET', gates, field), nil, false
    if not is_closed then first = call('ZRANGEBYLEX', limits, '[p' .. line, after_prefix('p' .. line), 'LIMIT', 0, 1)[1] end
    if first then head = 'o' .. sub(line, 17) .. sub(first, #line + 2, #line + 29) .. gate end
    if head == before and not (sure and head) then return end
    if before then call('ZREM', limits, before, (head_over_queues(before))) end
    if head then
      local over_queues, queue = head_over_queues(head)
      call('HSET', gates, field, head)
      call('ZADD', limits, 0, head)
      if call('SISMEMBER', paused, queue) == 0 then call('ZADD', limits, 0, over_queues) end
    else
      call('HDEL', gates, field)
    end
  end

  local function forget_why(gate)
    local found_by = call('HGET', gates, 'c' .. gate)
    if not found_by then return end
    call('ZREM', limits, found_by)
    call('HDEL', gates, 'c' .. gate)
  end

  local function open(gate)
    forget_why(gate)
    for _, line in ipairs(lines_of(gate)) do refresh(line, false) end
  end

  local function close(gate, why)
    forget_why(gate)
    local lines = lines_of(gate)
    if #lines == 0 then return end -- a gate without jobs is forgotten
    local found_by = why.opens_at and 't' .. sortable(why.opens_at) .. gate or 'b' .. why.key .. '\0' .. sortable(now) .. gate
    call('HSET', gates, 'c' .. gate, found_by)
    call('ZADD', limits, 0, found_by)
    for _, line in ipairs(lines) do refresh(line, true) end
  end

  call('ZREM', leases, '') -- see `write_all`
  for gate in pairs(opening or {}) do open(gate) end
  for gate, why in pairs(closing or {}) do close(gate, why) end
  for line in pairs(changed_lines) do refresh(line, call('HEXISTS', gates, 'c' .. sub(line, 1, 16)) == 1) end
  for key in pairs(freed_keys) do
    local prefix = 'b' .. key .. '\0'
    for _, member in ipairs(call('ZRANGEBYLEX', limits, '[' .. prefix, after_prefix(prefix), 'LIMIT', 0, REOPENED)) do
      open(sub(member, -16))
    end
  end
  changed_lines, freed_keys = {}, {}
end
