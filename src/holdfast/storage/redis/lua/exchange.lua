-- Apply changes, note what began, then claim.
--
-- KEYS     see the prelude
-- ARGV     now, origin,
--          number of changes, then for each: the change (see CHANGE) and, if it says so, outcome and errors,
--          number of notes of what began, the notes (see HOLD),
--          number of wants or -1 for no claim; with a claim: worker, stamp, chunk, the highest row version we know, then for
--          each want: limit, 'alone' or 'any', routing ('*', '-' or '=' and the key), number of queues (-1: all), queues,
--          number of tasks (-1: all), tasks
-- returns  {an answer per change (see the prelude) as one text, queues that have ready jobs now, whether a job ended,
--          microseconds until the next scheduled job or false, whether there are suspects, claimed records (see `tell`)}

local now, origin = clock(ARGV[1]), ARGV[2]
local at = 3

local function argument()
  at = at + 1
  return ARGV[at - 1]
end

-- ---- apply -----------------------------------------------------------------------------------------------------------
-- id, guard, attempt or version, stamp, state (0: none), failures, losses, options, delay or instant, started_at, keep,
-- keep_last
local CHANGE = '<c16BI4c8BI4I4Hdddd'
local BY_HOLD, BY_ENDED_HOLD, BY_VERSION, BY_LAPSE = 0, 1, 2, 3
local IS_SUSPECT, IS_HIDDEN, KEEPS_HOLD, FREES_KEY, TAKES_KEY, HAS_TIME, TIME_IS_INSTANT = 1, 2, 4, 8, 16, 32, 64
local WITH_OUTCOME, WITH_ERRORS = 128, 256

local function wants(change, option) return band(change.options, option) ~= 0 end

local function next_change()
  local change = {}
  change.id, change.guard, change.number, change.stamp, change.state, change.failures, change.losses, change.options,
    change.time, change.started_at, change.keep, change.keep_last = parse(CHANGE, argument())
  if wants(change, WITH_OUTCOME) then change.outcome = argument() end
  if wants(change, WITH_ERRORS) then change.errors = argument() end
  return change
end

local taken_keys = {} -- owners of keys as this list has left them; false: nobody

local function owner_of(unique)
  local owner = taken_keys[unique]
  if owner == nil then return redis.call('HGET', held_keys, unique) end
  return owner
end

local function judged(row, change)
  if not row then return 5 end
  if change.guard == BY_HOLD or change.guard == BY_ENDED_HOLD then
    local fits = change.guard == BY_HOLD and row.state == RUNNING or change.guard == BY_ENDED_HOLD and row.state > RUNNING
    if fits and carries(row, change.number, change.stamp) then return 0 end
    if has(row, SETTLED) and row.settled == change.stamp then return 1 end
    return lost(row)
  end
  local over = row.leased_until ~= NONE and row.leased_until <= now
  if row.version ~= change.number or (change.guard == BY_LAPSE and not over) then return 6 end
  return 0
end

local function free_key(row)
  if has(row, HOLDS_KEY) then
    taken_keys[row.unique] = false
    note(unset, held_keys, row.unique)
    mark(row, HOLDS_KEY, false)
  end
end

local function take_key(row)
  if row.unique == '' then return end
  mark(row, HOLDS_KEY, true)
  taken_keys[row.unique] = row.id
  note(set, held_keys, row.unique, row.id)
end

local function write_texts(row, change)
  if change.outcome then
    note(set, outcomes, row.id, change.outcome)
  elseif has(row, HAS_OUTCOME) then
    note(unset, outcomes, row.id)
  end
  mark(row, HAS_OUTCOME, change.outcome)
  if change.errors then
    note(set, errors, row.id, change.errors)
    mark(row, HAS_ERRORS, true)
  end
end

local function write_values(row, change)
  local state = change.state
  if wants(change, HAS_TIME) then
    row.run_at = wants(change, TIME_IS_INSTANT) and change.time or now + change.time
    row.rank = row.run_at
  end
  if state == SCHEDULED and row.run_at <= now then state = READY end
  if state <= RUNNING then
    row.finished_at = NONE
  elseif row.state <= RUNNING then
    row.finished_at = now
  end
  row.state, row.failures, row.losses = state, change.failures, change.losses
  mark(row, SUSPECT, wants(change, IS_SUSPECT))
  mark(row, HIDDEN, wants(change, IS_HIDDEN))
  write_texts(row, change)
  if change.started_at ~= NONE then row.started_at = change.started_at end
  row.prune_at = change.keep == NONE and NONE or now + change.keep
  row.keep_last = change.keep_last
end

local function write(row, change)
  lift(row)
  row.version = row.version + 1
  if change.guard <= BY_ENDED_HOLD and change.state > 0 then
    row.settled = change.stamp
    mark(row, SETTLED, true)
  end
  if change.state == 0 or not wants(change, KEEPS_HOLD) then
    row.stamp, row.leased_by, row.leased_until = NOBODY, '', NONE
    mark(row, HELD, false)
  end
  if change.state == 0 or wants(change, FREES_KEY) then
    free_key(row)
  elseif wants(change, TAKES_KEY) then
    take_key(row)
  end
  if change.state > 0 then write_values(row, change) end
  set_back(row)
  ended_some = ended_some or row.state > RUNNING
end

local function apply(row, change)
  local answer = judged(row, change)
  if answer == 0 and wants(change, TAKES_KEY) and row.unique ~= '' then
    local owner = owner_of(row.unique)
    if owner and owner ~= row.id then return 7 end
  end
  if answer == 0 then write(row, change) end
  return answer
end

local changes, ids = {}, {}
for number = 1, tonumber(argument()) do
  changes[number] = next_change()
  ids[number] = changes[number].id
end
load(ids)
local answers = {}
for number, change in ipairs(changes) do answers[number] = apply(known[change.id], change) end
local begun = tonumber(argument())
for _, row in pairs(note_started(at, at + begun - 1)) do changed(row) end
at = at + begun
if #changes + begun > 0 then flush() end

local want_count = tonumber(argument())
if want_count < 0 then return { table.concat(answers), publish(origin), ended_some and 1 or 0, false, 0, {} } end

-- ---- claim -----------------------------------------------------------------------------------------------------------
local worker, stamp, chunk, newest = argument(), argument(), tonumber(argument()), tonumber(argument())
promote(now, chunk)

local function listed()
  local length = tonumber(argument())
  if length < 0 then return nil end
  local list = {}
  for number = 1, length do list[number] = argument() end
  return list
end

local paused_queues = {}
for _, queue in ipairs(redis.call('SMEMBERS', paused)) do paused_queues[queue] = true end

-- The lanes of a want: by name where it names them, else those that there are.
local function lanes_of(want, kind)
  local found = {}
  for version = 1, newest do
    local base = kind .. string.char(version)
    for _, queue in ipairs(want.queues or names_under(lanes, base)) do
      if not paused_queues[queue] then
        local within = base .. queue .. '\0'
        for _, task in ipairs(want.tasks or names_under(lanes, within)) do
          local prefix = within .. task .. '\0'
          for _, routing in ipairs(want.routing and { want.routing } or names_under(lanes, prefix)) do
            found[#found + 1] = prefix .. routing .. '\0'
          end
        end
      end
    end
  end
  return found
end

local taken = {} -- members of lanes that this script has claimed already

local function fits(member, lane)
  if taken[member] then return false end
  return #member - #lane == 28 or parse('<d', member, #member - 7) > now
end

-- A lane that is read head by head.
local function open(lane, size) return { lane = lane, size = size, at = 0, members = {}, from = '[' .. lane } end

local function head(source)
  while source.members do
    while source.at < #source.members do
      source.at = source.at + 1
      local member = source.members[source.at]
      if fits(member, source.lane) then return member end
    end
    local more = redis.call('ZRANGEBYLEX', lanes, source.from, beyond(source.lane), 'LIMIT', 0, source.size)
    if #more == 0 then
      source.members = nil
    else
      source.members, source.at, source.from = more, 0, '(' .. more[#more]
    end
  end
end

local function keys_of(source, member)
  source.member = member
  source.priority, source.rank_high, source.rank_low, source.a, source.b, source.c, source.d =
    parse('>I4I4I4I4I4I4I4', member, #source.lane + 1)
  return source
end

local ORDER = { 'priority', 'rank_high', 'rank_low', 'a', 'b', 'c', 'd' }

local function before(one, other)
  for _, key in ipairs(ORDER) do
    if one[key] ~= other[key] then return one[key] < other[key] end
  end
  return false
end

local function sift_down(heap, at)
  local size = #heap
  while true do
    local least, left = at, 2 * at
    if left <= size and before(heap[left], heap[least]) then least = left end
    if left < size and before(heap[left + 1], heap[least]) then least = left + 1 end
    if least == at then return end
    heap[at], heap[least] = heap[least], heap[at]
    at = least
  end
end

-- The best jobs of some lanes: {member, lane} each.
local function best(found, limit)
  local chosen, heap = {}, {}
  if #found == 1 then
    local source = open(found[1], limit)
    while #chosen < limit do
      local member = head(source)
      if not member then break end
      chosen[#chosen + 1] = { member, source.lane }
    end
    return chosen
  end
  for _, lane in ipairs(found) do
    local source = open(lane, math.max(2, math.ceil(limit / #found)))
    local member = head(source)
    if member then heap[#heap + 1] = keys_of(source, member) end
  end
  for number = math.floor(#heap / 2), 1, -1 do sift_down(heap, number) end
  while #heap > 0 and #chosen < limit do
    local source = heap[1]
    chosen[#chosen + 1] = { source.member, source.lane }
    local member = head(source)
    if member then
      keys_of(source, member)
    else
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    sift_down(heap, 1)
  end
  return chosen
end

local function id_in(choice) return string.sub(choice[1], #choice[2] + 13, #choice[2] + 28) end

local function claim(row)
  lift(row)
  row.state, row.attempt, row.version = RUNNING, row.attempt + 1, row.version + 1
  row.stamp, row.leased_by, row.leased_until, row.started_at = stamp, worker, now + row.lease, NONE
  mark(row, HELD, true)
  if row.scope == 1 then free_key(row) end
  set_back(row)
end

local asked, claimed = {}, {}
for number = 1, want_count do
  local want = { limit = tonumber(argument()), alone = argument() == 'alone' }
  local routing = argument()
  if routing ~= '*' then want.routing = routing end
  want.queues, want.tasks = listed(), listed()
  asked[number] = want
  if want.limit > 0 then
    local chosen = best(lanes_of(want, want.alone and 's' or 'r'), want.limit)
    local chosen_ids = {}
    for place_in_list, choice in ipairs(chosen) do
      taken[choice[1]] = true
      chosen_ids[place_in_list] = id_in(choice)
    end
    load(chosen_ids)
    for place_in_list, id in ipairs(chosen_ids) do
      local row = known[id]
      if row and row.state == READY and in_lane(row) == chosen[place_in_list][1] then
        claim(row)
        claimed[#claimed + 1] = id
      else
        note(gone, lanes, chosen[place_in_list][1]) -- it is not what the index says
      end
    end
  end
end
if #claimed > 0 then leases_given(now) end
if next(taken) then flush() end

local function any_suspect()
  if not redis.call('ZRANGEBYLEX', lanes, '[s', '(t', 'LIMIT', 0, 1)[1] then return 0 end
  for _, want in ipairs(asked) do
    if #best(lanes_of(want, 's'), 1) > 0 then return 1 end
  end
  return 0
end

local due = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
local records = {}
tell(records, claimed)
return {
  table.concat(answers), publish(origin), ended_some and 1 or 0,
  due and math.max(0, tonumber(due) - now) or false, any_suspect(), records,
}
