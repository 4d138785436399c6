-- Part of the beginning of exchange: jobs under limits that stand in the only line that there is, at a gate that is open and has
-- room for more than are wanted. Then nobody is to be passed by, and nothing is to be closed or opened (see gates.lua,
-- admitting.lua). Gives the line and its members, those that are wanted and the one behind them; or nil when it is not as usual.
-- A room of its own, made when it is entered.
local function usual_gate(newest, wanted)
  -- In the order of the bytes: gates closed by a key (b), starts (n), heads of lines (o), lines (p), heads of lines over all
  -- queues (q), gates closed by a rate (t).
  -- So the first is the head of a line, the next one stands in it, and the last is no closed gate.
  local first, last = call('ZRANGE', limits, 0, 1), call('ZRANGE', limits, -1, -1)[1]
  local head, best = first[1], first[2]
  if not best or #head < 46 or string.byte(last) == 116 then return nil end
  local lane, queue, task, routing = string.match(head, '^o(r.([^%z]*)%z([^%z]*)%z([^%z]*)%z)')
  if not lane or string.byte(lane, 2) > newest then return nil end
  local limit = wanted('limited', queue, task, routing)
  if not limit or limit < 1 or limit >= AT_ONCE then return nil end
  local line = 'p' .. string.sub(head, -16) .. lane
  if best ~= line .. string.sub(head, #lane + 2, -17) then return nil end
  local names_before, names_behind = 'q' .. string.sub(lane, 1, 2) .. string.sub(lane, #queue + 4), queue .. '\0' .. string.sub(head, -16)
  local gate = { line = line }
  gate.members = call('ZRANGEBYLEX', limits, '[' .. line, '(' .. string.sub(line, 1, -2) .. '\1', 'LIMIT', 0, limit + 1)
  gate.length = math.min(#gate.members, limit)
  local said
  local held_under = {} -- slots of its keys (see places.lua)

  -- Whether there is room for more than so many; a rate is not as usual.
  local function has_room(length)
    local at = 17
    while at <= #said do
      local key, most, starts, _
      key, most, starts, _, at = struct.unpack('<Hc0ddd', said, at)
      if most == NONE or starts ~= NONE then return false end
      local slot = 's' .. key
      local held = tonumber(call('HGET', gates, slot) or 0)
      if not held or most - held <= length then return false end
      held_under[slot] = true
    end
    return next(held_under) ~= nil
  end

  -- Whether a row that waits is under these limits, with room for so many.
  function gate.fits(text, behind, length)
    local _, run_at, at
    _, _, _, _, _, _, _, run_at, _, _, _, _, at = struct.unpack(REST, text, behind)
    gate.place = READY .. queue .. '\0' .. struct.pack('>I8', run_at + 2251799813685248) -- see in_aside, ordered
    local limits_of_row = struct.unpack(MORE, text, at)
    if said then return said == limits_of_row end
    said = limits_of_row
    return has_room(length)
  end

  -- Jobs of a kind stand aside in the order of their ids, mostly with nobody between them.
  local function leave_aside(kind, ids)
    local from, to = '[' .. kind.place .. ids[kind.first], '[' .. kind.place .. ids[kind.last]
    if call('ZLEXCOUNT', aside, from, to) == kind.last - kind.first + 1 then return call('ZREMRANGEBYLEX', aside, from, to) end
    local waiting = {}
    for number = kind.first, kind.last do waiting[#waiting + 1] = kind.place .. ids[number] end
    call('ZREM', aside, unpack(waiting))
  end

  -- All of them are to start.
  function gate.write(kinds, ids, slots)
    local behind = gate.members[gate.length + 1]
    for _, kind in ipairs(kinds) do leave_aside(kind, ids) end
    for slot in pairs(held_under) do slots[slot] = (slots[slot] or 0) + gate.length end
    call('ZREMRANGEBYRANK', limits, 0, gate.length) -- the head, and those that are taken
    call('ZREM', limits, names_before .. string.sub(head, #lane + 2, -17) .. names_behind)
    if behind then
      local place = string.sub(behind, #line + 1, #line + 28)
      local next_head = 'o' .. lane .. place .. string.sub(head, -16)
      call('HSET', gates, 'h' .. string.sub(line, 2), next_head)
      call('ZADD', limits, 0, next_head, 0, names_before .. place .. names_behind)
    else
      call('HDEL', gates, 'h' .. string.sub(line, 2))
    end
  end

  return gate
end
