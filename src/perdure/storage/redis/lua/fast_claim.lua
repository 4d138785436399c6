-- Part of the beginning of exchange: a claim of jobs that were never claimed before, from the only lane that there is, or where
-- there is none from the only gate (see usual_gate.lua), or of none where there are no jobs. Gives what is to be written, what is
-- to be told, and whether another job could start at the gate. What is told: for jobs with the same row that, their ids as one
-- text, and their bodies. Or nil when it is not as usual. A room of its own, made when it is entered.
local function usual_claim(at, now)
  local HEADS = 8 -- of the lanes, looked at first: mostly there is one job or none
  local worker, stamp, newest = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 4])
  local ids, texts, held, kinds = {}, {}, {}, {}
  local lane, members, length, gate

  -- Whether a name is in the list at this place (-1: all are), and where the list ends.
  local function listed(place, name)
    local found = ARGV[place] == '-1'
    local behind = place + (found and 0 or tonumber(ARGV[place]))
    for number = place + 1, behind do found = found or ARGV[number] == name end
    return found, behind
  end

  -- How many jobs of a lane the wants of a kind ask for, all together, and whether there are wants of the other kind. nil: a
  -- want asks for something else.
  local function wanted(kind, queue, task, routing)
    local place, total, others = at + 5, 0, false
    for _ = 1, tonumber(ARGV[at]) do
      local in_queues, in_tasks, behind
      in_queues, behind = listed(place + 4, queue)
      in_tasks, behind = listed(behind + 1, task)
      if ARGV[place + 1] ~= 'any' then return nil end
      if ARGV[place + 2] ~= kind then
        others = true
      elseif in_queues and in_tasks and (ARGV[place + 3] == '*' or ARGV[place + 3] == routing) then
        total = total + ARGV[place]
      end
      place = behind + 1
    end
    return total, others
  end

  -- Whether nobody waits under limits, and no start under one is remembered.
  local function nobody_parked() return call('EXISTS', limits) == 0 end

  -- The members of the only lane, or those at the only gate, as many as are wanted; false when it is not as usual.
  local function find()
    local last, queue, task, routing
    members = call('ZRANGE', lanes, 0, HEADS - 1)
    last = members[#members]
    if not last then
      length = 0
      if nobody_parked() then return true end
      gate = usual_gate(newest, wanted)
      if not gate then return false end
      lane, members, length = gate.line, gate.members, gate.length
      return true
    end
    if #members == HEADS then last = call('ZRANGE', lanes, -1, -1)[1] end
    lane, queue, task, routing = string.match(members[1], '^(r.([^%z]*)%z([^%z]*)%z([^%z]*)%z)')
    if not lane or string.sub(last, 1, #lane) ~= lane or string.byte(members[1], 2) > newest then return false end
    local limit, limited_too = wanted('plain', queue, task, routing)
    if not limit or limit < 1 or limit > AT_ONCE or (limited_too and not nobody_parked()) then return false end
    if #members == HEADS and limit > HEADS then members = call('ZRANGE', lanes, 0, limit - 1) end
    length = math.min(#members, limit)
    return true
  end

  -- How a row is written that is claimed for the first time.
  local function kind_of(text, number)
    if not text or flaw_in(text) then return false end
    local state, marks, version, behind = struct.unpack(HEAD, text)
    if state ~= READY or marks ~= (gate and LIMITED + PARKED or 0) then return false end
    if gate and not gate.fits(text, behind, length) then return false end
    local lease, _, lane_of_row = struct.unpack(FIRST, text, behind)
    local kind = { first = number, place = gate and gate.place, lane = lane_of_row, leased_until = string.format('%.0f', now + lease) }
    kind.text = struct.pack(RUN, RUNNING, RAN + HELD + (gate and LIMITED or 0), version + 1, 1, 0, 0, stamp, NOBODY, now + lease,
      NONE, NONE, NONE, NONE, #worker, worker) .. string.sub(text, behind)
    kinds[#kinds + 1] = kind
    return kind
  end

  if not find() then return nil end
  if length == 0 then return function() end, {} end
  local seen = {}
  for number = 1, length do
    if #members[number] - #lane ~= 28 then return nil end -- it may expire
    local id = string.sub(members[number], #lane + 13)
    if seen[id] then return nil end
    ids[number], seen[id] = id, true
  end
  local known, kind
  for number, text in ipairs(call('HMGET', rows, unpack(ids))) do
    if text ~= known then
      known, kind = text, kind_of(text, number)
      if not kind then return nil end
    end
    local place, id = 2 * number, ids[number]
    texts[place - 1], texts[place] = id, kind.text
    held[place - 1], held[place] = kind.leased_until, id
    kind.last = number
  end
  local records = {}
  for number, each in ipairs(kinds) do
    local bodies = call('HMGET', jobs, unpack(ids, each.first, each.last))
    records[number] = { each.text, table.concat(ids, '', each.first, each.last), bodies }
  end

  local function write(tally, slots)
    if gate then
      gate.write(kinds, ids, slots)
    elseif length > 0 then -- those that are taken stand at the beginning
      call('ZREMRANGEBYRANK', lanes, 0, length - 1)
      keep_head(lane, members[1])
    end
    call('HSET', rows, unpack(texts))
    call('ZADD', leases, unpack(held))
    -- see `leases_given`; of a clock that goes back by less than a second no harm comes
    local given = number_in(meta, 'given')
    if not given or given < now - 1000000 then call('HSET', meta, 'given', string.format('%.0f', now)) end
    for _, each in ipairs(kinds) do
      tally(each.lane, READY, each.first - each.last - 1)
      tally(each.lane, RUNNING, each.last - each.first + 1)
    end
  end

  return write, records, gate and #members > length
end
