-- What every verb shares: the keys, rows as texts and tables, and the places of a row in the indexes.
--
-- KEYS  all keys of the store, in the order of keys.py; every script declares every key, so that a cluster can check them.
--
-- A script is no transaction: what it has written stays when it fails. So every verb reads and checks all, notes what is to
-- be written, and writes it in one go (`flush`). Rows are lifted out of all indexes before they change and set back
-- afterwards, so that no change can forget one.
--
-- Two texts are never compared with < here: Lua compares by the server's locale. The server's own order is by bytes.

local jobs, rows, lanes, schedule, aside, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local expiring, ended, prunable, created, dead, named = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local outcomes, errors, progress, logs = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local held_keys, kept_keys, windows, counts, depths = KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local bounds, paused, meta, queues, workers = KEYS[22], KEYS[23], KEYS[24], KEYS[25], KEYS[26]

local BLOCKED, SCHEDULED, READY, RUNNING, DEAD = 1, 2, 3, 4, 7
local NONE = -9007199254740992 -- stands for "no number"
local NOBODY = '\0\0\0\0\0\0\0\0' -- stands for "no stamp"
local NAMED_ONCE = 500 -- elements of one variadic command; unpack() fails beyond some thousands

-- marks of a row
local SUSPECT, PARKED, HIDDEN, HOLDS_KEY = 1, 2, 4, 8
local HAS_OUTCOME, HAS_ERRORS, HAS_PROGRESS, HAS_LOG = 16, 32, 64, 128
local RAN, HELD, SETTLED = 256, 512, 1024

local band, bor, bnot = bit.band, bit.bor, bit.bnot
local pack, parse = struct.pack, struct.unpack

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- ---- rows ------------------------------------------------------------------------------------------------------------
-- state, marks, version, priority, waits, min_version, unique scope, created_at, run_at, rank, lease, expires_at,
-- lane, unique key, names; and once it was claimed: attempt, failures, losses, stamp, settled, leased_until, started_at,
-- finished_at, prune_at, keep_last, leased_by
local HEAD = '<BHI4i4I4BBdddddHc0Hc0Hc0'
local RUN = '<I4I4I4c8c8dddddHc0'

local function has(row, mark) return band(row.marks, mark) ~= 0 end

local function mark(row, which, on)
  row.marks = on and bor(row.marks, which) or band(row.marks, bnot(which))
end

local function read(id, text)
  local row, at = { id = id }
  row.state, row.marks, row.version, row.priority, row.waits, row.min_version, row.scope, row.created_at, row.run_at,
    row.rank, row.lease, row.expires_at, row.lane, row.unique, row.names, at = parse(HEAD, text)
  if band(row.marks, RAN) ~= 0 then
    row.attempt, row.failures, row.losses, row.stamp, row.settled, row.leased_until, row.started_at, row.finished_at,
      row.prune_at, row.keep_last, row.leased_by = parse(RUN, text, at)
  else
    row.attempt, row.failures, row.losses, row.stamp, row.settled, row.leased_by = 0, 0, 0, NOBODY, NOBODY, ''
    row.leased_until, row.started_at, row.finished_at, row.prune_at, row.keep_last = NONE, NONE, NONE, NONE, NONE
  end
  return row
end

local function written(row)
  row.marks = bor(row.marks, RAN)
  return pack(HEAD, row.state, row.marks, row.version, row.priority, row.waits, row.min_version, row.scope, row.created_at,
    row.run_at, row.rank, row.lease, row.expires_at, #row.lane, row.lane, #row.unique, row.unique, #row.names, row.names)
    .. pack(RUN, row.attempt, row.failures, row.losses, row.stamp, row.settled, row.leased_until, row.started_at,
      row.finished_at, row.prune_at, row.keep_last, #row.leased_by, row.leased_by)
end

-- Rows by id, as tables; each is read once, so that all steps of a script see the same table. false: not on record.
local known = {}

local function slices(list, size, work)
  for from = 1, #list, size do work(from, math.min(from + size - 1, #list)) end
end

local function load(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if known[id] == nil then
      known[id] = false
      missing[#missing + 1] = id
    end
  end
  slices(missing, NAMED_ONCE, function(from, to)
    local texts = redis.call('HMGET', rows, unpack(missing, from, to))
    for number, text in ipairs(texts) do
      if text then
        local id = missing[from + number - 1]
        known[id] = read(id, text)
      end
    end
  end)
end

-- ---- what is to be written -------------------------------------------------------------------------------------------
local gone, came = {}, {} -- members that leave a sorted set, scores and members that join one: by key
local unset, set = {}, {} -- fields that leave a hash, fields and values that join one: by key
local counted, deeper = {}, {} -- differences of counts and depths
local woken, ended_some = {}, false

local function note(lists, key, first, second)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[#list + 1] = first
  if second then list[#list + 1] = second end
end

local function changed(row) note(set, rows, row.id, written(row)) end

local function variadic(command, lists)
  for key, list in pairs(lists) do
    slices(list, 2 * NAMED_ONCE, function(from, to) redis.call(command, key, unpack(list, from, to)) end)
  end
end

local function add_up(key, differences)
  for field, difference in pairs(differences) do
    if difference ~= 0 and redis.call('HINCRBY', key, field, difference) <= 0 then redis.call('HDEL', key, field) end
  end
end

-- Removals first: they are allowed when the memory is full, and once a script has written, it may write on.
local function flush()
  redis.call('ZREM', leases, '')
  variadic('ZREM', gone)
  variadic('HDEL', unset)
  variadic('HSET', set)
  variadic('ZADD', came)
  add_up(counts, counted)
  add_up(depths, deeper)
  gone, came, unset, set, counted, deeper = {}, {}, {}, {}, {}, {}
end

-- Tell other processes; they may be forbidden to us, and nobody waits for a signal.
local function publish(origin)
  local names = {}
  for queue in pairs(woken) do names[#names + 1] = queue end
  if #names > 0 then redis.pcall('PUBLISH', meta .. ':ready', origin .. table.concat(names, '\0')) end
  if ended_some then redis.pcall('PUBLISH', meta .. ':changed', origin) end
  return names
end

-- ---- places ----------------------------------------------------------------------------------------------------------
-- Numbers as eight bytes whose order is theirs.
local function ordered(number) return pack('>I8', number + 2251799813685248) end

local function queue_of(row) return string.match(row.lane, '^[^%z]*') end

-- A lane's members begin with: r (or s for suspects), the row's version, queue NUL task NUL routing key NUL.
-- They go on with priority (the highest first), rank, id and, as long as it matters, when it expires.
local function lane_of(row) return (has(row, SUSPECT) and 's' or 'r') .. string.char(row.min_version) .. row.lane .. '\0' end

local function may_expire(row) return row.expires_at ~= NONE and row.started_at == NONE end

local function in_lane(row)
  local tail = may_expire(row) and pack('<d', row.expires_at) or ''
  return lane_of(row) .. pack('>I4', 2147483647 - row.priority) .. ordered(row.rank) .. row.id .. tail
end

-- Jobs that wait neither in a lane nor for a time: state, queue NUL run_at id.
local function in_aside(row) return row.state .. queue_of(row) .. '\0' .. ordered(row.run_at) .. row.id end

-- Ended jobs of a task: task NUL dead or other NUL keep_last NUL finished_at id.
local function among_ended(row)
  local task = string.match(row.lane, '%z([^%z]*)')
  local group = row.state == DEAD and 'd' or 'o'
  local keep_last = row.keep_last == NONE and '-' or string.format('%.0f', row.keep_last)
  return task .. '\0' .. group .. '\0' .. keep_last .. '\0' .. ordered(row.finished_at) .. row.id
end

local function sum(differences, field, difference) differences[field] = (differences[field] or 0) + difference end

local function count(row, difference)
  if not has(row, HIDDEN) then sum(counted, row.lane .. '\0' .. row.state, difference) end
  if row.state <= READY then sum(deeper, queue_of(row), difference) end
end

-- Take a row out of its indexes, before it changes.
local function lift(row)
  count(row, -1)
  if row.state <= READY then
    if may_expire(row) then note(gone, expiring, row.id) end
    if row.state == SCHEDULED then
      note(gone, schedule, row.id)
    elseif row.state == READY and not has(row, PARKED) then
      note(gone, lanes, in_lane(row))
    else
      note(gone, aside, in_aside(row))
    end
  elseif row.state > RUNNING and not has(row, HIDDEN) then
    note(gone, ended, among_ended(row))
    if row.state == DEAD then note(gone, dead, row.id) end
  end
  if has(row, HELD) then note(gone, leases, row.id) end
  if row.prune_at ~= NONE then note(gone, prunable, row.id) end
end

-- Put a row where it belongs as it is now.
local function place(row)
  count(row, 1)
  if row.state <= READY then
    if may_expire(row) then note(came, expiring, row.expires_at, row.id) end
    if row.state == READY then woken[queue_of(row)] = true end
    if row.state == SCHEDULED then
      note(came, schedule, row.run_at, row.id)
    elseif row.state == READY and not has(row, PARKED) then
      note(came, lanes, 0, in_lane(row))
    else
      note(came, aside, 0, in_aside(row))
    end
  elseif row.state > RUNNING and not has(row, HIDDEN) then
    note(came, ended, 0, among_ended(row))
    if row.state == DEAD then note(came, dead, row.created_at, row.id) end
  end
  if has(row, HELD) then note(came, leases, row.leased_until, row.id) end
  if row.prune_at ~= NONE then note(came, prunable, row.prune_at, row.id) end
end

local function set_back(row)
  place(row)
  changed(row)
end

-- ---- holds -----------------------------------------------------------------------------------------------------------
-- Answers: 0 accepted, 1 repeated, 2 taken, 3 completed, 4 cancelled, 5 not found, 6 stale, 7 key taken.
local function lost(row)
  if has(row, HIDDEN) then return 5 end
  if row.state == 8 then return 4 end
  return row.state > RUNNING and 3 or 2
end

local function carries(row, attempt, stamp) return has(row, HELD) and row.attempt == attempt and row.stamp == stamp end

local function standing(row, attempt, stamp)
  if not row then return 5 end
  if row.state == RUNNING and carries(row, attempt, stamp) then return 0 end
  return lost(row)
end

-- Until when leases were given: a clock that stands before it went back.
local function leases_given(now)
  local last = redis.call('HGET', meta, 'given')
  if not last or tonumber(last) < now then note(set, meta, 'given', string.format('%.0f', now)) end
end

local HOLD = '<c16I4c8d' -- id, attempt, stamp, and when the handler began

-- Note when handlers began, for holds that stand. Gives the rows that changed.
local function note_started(from, to)
  local began, ids = {}, {}
  for number = from, to do
    local hold = { parse(HOLD, ARGV[number]) }
    began[#began + 1] = hold
    ids[#ids + 1] = hold[1]
  end
  load(ids)
  local touched = {}
  for _, hold in ipairs(began) do
    local row = known[hold[1]]
    if standing(row, hold[2], hold[3]) == 0 then
      row.started_at = hold[4]
      touched[row.id] = row
    end
  end
  return touched
end

-- ---- records ---------------------------------------------------------------------------------------------------------
-- Append to `answer`, for each id: id, row, body and those of outcome, errors, progress that its marks tell of.
-- An id that is not on record is left out.
local function tell(answer, ids)
  slices(ids, NAMED_ONCE, function(from, to)
    local texts = redis.call('HMGET', rows, unpack(ids, from, to))
    local bodies = redis.call('HMGET', jobs, unpack(ids, from, to))
    for number, text in ipairs(texts) do
      if text and bodies[number] then
        local id, at = ids[from + number - 1], #answer
        answer[at + 1], answer[at + 2], answer[at + 3] = id, text, bodies[number]
        local marks = parse('<H', text, 2)
        if band(marks, HAS_OUTCOME) ~= 0 then answer[#answer + 1] = redis.call('HGET', outcomes, id) or '' end
        if band(marks, HAS_ERRORS) ~= 0 then answer[#answer + 1] = redis.call('HGET', errors, id) or '' end
        if band(marks, HAS_PROGRESS) ~= 0 then answer[#answer + 1] = redis.call('HGET', progress, id) or '' end
      end
    end
  end)
end

-- ---- walking along an index ------------------------------------------------------------------------------------------
-- Members of these sets are texts between NULs, then bytes. What follows a prefix up to its NUL, each once: one look per name,
-- however many members it has.
local function below(prefix) return '(' .. prefix .. '\255' end

local function names_under(index, prefix)
  local found, from = {}, '[' .. prefix
  while true do
    local member = redis.call('ZRANGEBYLEX', index, from, below(prefix), 'LIMIT', 0, 1)[1]
    if not member then return found end
    local name = string.match(member, '^[^%z]*', #prefix + 1)
    found[#found + 1] = name
    from = '[' .. prefix .. name .. '\1'
  end
end

-- The members that begin with a text that ends in NUL, whatever bytes follow.
local function beyond(prefix) return '(' .. string.sub(prefix, 1, -2) .. '\1' end
