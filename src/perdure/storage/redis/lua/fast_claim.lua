-- Part of the fast path of exchange: a claim of jobs that were never claimed before, from the only lane that there is, or a claim
-- where no job waits at all. Returns a function that writes it, and the claimed jobs: for jobs with the same row the row, their
-- ids as one text, and their bodies. Returns nil, with nothing written, if the general path must claim.
local function try_fast_claim(at, now)
  local FEW = 8 -- members of lanes that are read first: mostly there is one job or none
  local worker, stamp, newest = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 4])
  local ids, texts, held, kinds = {}, {}, {}, {}
  local lane, members, length

  -- Whether a name is in the list at this place (-1: all are), and where the list ends.
  local function listed(place, name)
    local found = ARGV[place] == '-1'
    local behind = place + (found and 0 or tonumber(ARGV[place]))
    for number = place + 1, behind do found = found or ARGV[number] == name end
    return found, behind
  end

  -- How many jobs of a lane all wants together ask for; nil if one of them asks for suspects, or for limited jobs where any wait.
  local function wanted(queue, task, routing)
    local at_want, total = at + 5, 0
    for _ = 1, tonumber(ARGV[at]) do
      local in_queues, in_tasks, behind
      in_queues, behind = listed(at_want + 4, queue)
      in_tasks, behind = listed(behind + 1, task)
      if ARGV[at_want + 1] ~= 'any' or (ARGV[at_want + 2] == 'limited' and call('EXISTS', limits) == 1) then return nil end
      if ARGV[at_want + 2] == 'plain' and in_queues and in_tasks and (ARGV[at_want + 3] == '*' or ARGV[at_want + 3] == routing) then
        total = total + ARGV[at_want]
      end
      at_want = behind + 1
    end
    return total
  end

  -- Read the members of the only lane, as many as are wanted. Returns false if the general path must claim.
  local function find()
    local last, queue, task, routing
    members = call('ZRANGE', lanes, 0, FEW - 1)
    last = members[#members]
    if not last then
      length = 0
      return call('EXISTS', limits) == 0 -- no job waits under limits, and no start under one is remembered
    end
    if #members == FEW then last = call('ZRANGE', lanes, -1, -1)[1] end
    lane, queue, task, routing = string.match(members[1], '^(r.([^%z]*)%z([^%z]*)%z([^%z]*)%z)')
    if not lane or string.sub(last, 1, #lane) ~= lane or string.byte(members[1], 2) > newest then return false end
    local limit = wanted(queue, task, routing)
    if not limit or limit < 1 or limit > AT_ONCE then return false end
    if #members == FEW and limit > FEW then members = call('ZRANGE', lanes, 0, limit - 1) end
    length = math.min(#members, limit)
    return true
  end

  -- How a row is written that is claimed for the first time.
  local function kind_of(text, number)
    if not text or flaw_in(text) then return false end
    local state, marks, version, behind = struct.unpack(HEAD, text)
    if state ~= READY or marks ~= 0 then return false end
    local lease, _, lane_of_row = struct.unpack(FIRST, text, behind)
    local kind = { first = number, lane = lane_of_row, leased_until = string.format('%.0f', now + lease) }
    kind.text = struct.pack(RUN, RUNNING, RAN + HELD, version + 1, 1, 0, 0, stamp, NOBODY, now + lease,
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

  local function write(tally)
    call('ZREMRANGEBYRANK', lanes, 0, length - 1) -- the claimed ones are the first
    update_head(lane, members[1])
    call('HSET', rows, unpack(texts))
    call('ZADD', leases, unpack(held))
    -- see `note_lease_time`; a clock that goes back by less than a second does no harm
    local given = number_in(meta, 'given')
    if not given or given < now - 1000000 then call('HSET', meta, 'given', string.format('%.0f', now)) end
    for _, each in ipairs(kinds) do
      tally(each.lane, READY, each.first - each.last - 1)
      tally(each.lane, RUNNING, each.last - each.first + 1)
    end
  end

  return write, records
end
