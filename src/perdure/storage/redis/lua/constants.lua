-- The beginning of every script: names for keys, numbers and formats, the clock, and checks of stored values. Names cost nothing,
-- because scripts.py writes their values into the text where they are used.
--
-- KEYS  all keys of the store, in the order of keys.py; every script declares every key, so that a cluster can check them.
local jobs, rows, lanes, schedule, aside, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local expiring, ended, prunable, created, dead, named = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local outcomes, errors, progress, logs = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local held_keys, kept_keys, windows, counts, depths = KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local bounds, paused, meta, queues, workers = KEYS[22], KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local limits, gates, edges, unresolved, kv, kv_index = KEYS[27], KEYS[28], KEYS[29], KEYS[30], KEYS[31], KEYS[32]
local accounts, heads, unread, unreadable = KEYS[33], KEYS[34], KEYS[35], KEYS[36]

local FORMAT = 1 -- of keys, rows and bodies: see schema.py
local BLOCKED, SCHEDULED, READY, RUNNING, DEAD_STATE, CANCELLED = 1, 2, 3, 4, 7, 8
local SHARE = 1000 -- of rank, in a fair queue
local NONE = -9007199254740992 -- stands for "no number"
local NOBODY = '\0\0\0\0\0\0\0\0' -- stands for "no stamp"
local AT_ONCE = 500 -- names in one variadic command; unpack() fails beyond some thousands

local call = redis.call

-- ---- rows ------------------------------------------------------------------------------------------------------------
-- A row is a text of three parts: its head; once it was claimed, its run; and its rest, which seldom changes.
-- As a table it is a list, because a list is made in one step: row[STATE], row[MARKS] …
local HEAD = '<BHI4' -- state, marks, version
local RUN = '<BHI4I4I4I4c8c8dddddHc0' -- the head and: attempt … leased_by
local FIRST = '<dBHc0' -- the first of the rest: lease, unique scope, lane
local REST = '<dBHc0i4I4BddddHc0Hc0' -- and priority, waits, min_version, created_at, run_at, rank, expires_at, unique key, names
local MORE = '<Hc0Hc0Bdd' -- what few rows have: gate, next_id, and hidden, keep, keep_last if it is cancelled with a parent

local STATE, MARKS, VERSION, ATTEMPT, FAILURES, LOSSES, STAMP, ACCEPTED_STAMP = 1, 2, 3, 4, 5, 6, 7, 8
local LEASED_UNTIL, STARTED_AT, FINISHED_AT, PRUNE_AT, KEEP_LAST, LEASED_BY = 9, 10, 11, 12, 13, 14
local REST_TEXT, ID, LEASE, SCOPE, LANE, DETAILS = 15, 16, 17, 18, 19, 20

-- marks of a row
local SUSPECT, PARKED, HIDDEN, HOLDS_KEY = 1, 2, 4, 8
local HAS_OUTCOME, HAS_ERRORS, HAS_PROGRESS, HAS_LOG = 16, 32, 64, 128
local RAN, HELD, HAS_ACCEPTED_STAMP, FOLLOWED = 256, 512, 1024, 2048
local LIMITED, WAITED, FINISHED, FAIR = 4096, 8192, 16384, 32768 -- has limits, has parents, runs when they finished, has a share

-- ---- what is asked for -----------------------------------------------------------------------------------------------
-- A shape of new jobs: options, priority, waits, min_version, unique scope, lease, delay or instant, expires, window, lane, more
-- (see MORE).
local SHAPE = '<Bi4I4BBddddHc0Hc0'

-- A change: id, guard, attempt or version, stamp, state (0: none), failures, losses, options, delay or instant, started_at, keep,
-- keep_last.
local CHANGE = '<c16BI4c8BI4I4Hdddd'
local BY_HOLD, BY_ENDED_HOLD, BY_VERSION, BY_LAPSE = 0, 1, 2, 3
local IS_SUSPECT, IS_HIDDEN, KEEPS_HOLD, FREES_KEY, TAKES_KEY, HAS_TIME, TIME_IS_INSTANT = 1, 2, 4, 8, 16, 32, 64
local WITH_OUTCOME, WITH_ERRORS, PAYS, WITH_NEXT, WITH_ADDS = 128, 256, 512, 1024, 2048

local function time_of_call(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- ---- values that another program wrote ---------------------------------------------------------------------------------
-- Other programs, operators and broken disks write into our keys. A script that fails in the middle leaves the others' jobs half
-- moved, so every value is checked before it is used.
local MOST = 9007199254740992 -- doubles are exact up to here
local LAST_VERSION = 4294967000 -- of a row, and of its attempts: four bytes hold no more

-- Whether a double is a whole number that can be counted with. Comparisons with NaN are false.
local function is_whole(number) return number >= NONE and number <= MOST and number % 1 == 0 end

-- The number in a field; nil if there is none, or something else.
local function number_in(key, field)
  local number = tonumber(call('HGET', key, field) or nil)
  if number and number >= NONE and number <= MOST then return number end
end

-- Why the end of a row (see MORE) cannot be read; nil if it can.
local function flaw_in_more(text, limited)
  local fine, gate, next_id, hidden, keep, keep_last, at = pcall(struct.unpack, MORE, text)
  if not fine or at <= #text then return 'limits' end
  if hidden > 1 or not is_whole(keep) or not is_whole(keep_last) then return 'retention' end
  if #next_id ~= 0 and #next_id ~= 16 then return 'next_id' end
  if not limited then return gate ~= '' and 'limits' or nil end
  local from = 17
  if #gate < from then return 'limits' end
  while from <= #gate do
    local read, _, most, starts, window, behind = pcall(struct.unpack, '<Hc0ddd', gate, from)
    if not read or not is_whole(most) or not is_whole(starts) or not is_whole(window) then return 'limits' end
    from = behind
  end
end

-- Why a row's rest, which begins at this place, cannot be read.
local function flaw_in_rest(text, begin, marks)
  local fine, lease, scope, lane, _, _, min_version, created_at, run_at, rank, expires_at, unique, _, at =
    pcall(struct.unpack, REST, text, begin)
  if not fine then return 'row' end
  if not (is_whole(lease) and lease >= 0) then return 'lease' end
  if scope > 4 then return 'unique_scope' end
  if not string.find(lane, '^[^%z]*%z[^%z]*%z[-=][^%z]*$') then return 'queue' end
  if min_version == 0 then return 'min_version' end
  if not is_whole(created_at) then return 'created_at' end
  if not is_whole(run_at) then return 'run_at' end
  if not is_whole(rank) then return 'rank' end
  if not is_whole(expires_at) then return 'expires_at' end
  if unique == '' and bit.band(marks, HOLDS_KEY) ~= 0 then return 'unique_key' end
  local limited = bit.band(marks, LIMITED) ~= 0
  if at <= #text then return flaw_in_more(string.sub(text, at), limited) end
  if limited then return 'limits' end
end

-- Why a row cannot be read: the name of a field that makes no sense; nil if all of them do.
local function flaw_in(text)
  local fine, state, marks, version, at = pcall(struct.unpack, HEAD, text)
  if not fine then return 'row' end
  if state < BLOCKED or state > CANCELLED then return 'state' end
  if version >= LAST_VERSION then return 'version' end
  local held = bit.band(marks, HELD) ~= 0
  if bit.band(marks, RAN) ~= 0 then
    local _, attempt, failures, losses, leased_until, started_at, finished_at, prune_at, keep_last
    fine, _, _, _, attempt, failures, losses, _, _, leased_until, started_at, finished_at, prune_at, keep_last, _, at =
      pcall(struct.unpack, RUN, text)
    if not fine then return 'row' end
    if attempt >= LAST_VERSION then return 'attempt' end
    if failures >= LAST_VERSION then return 'failures' end
    if losses >= LAST_VERSION then return 'losses' end
    if not is_whole(leased_until) or held ~= (leased_until ~= NONE) then return 'leased_until' end
    if not is_whole(started_at) then return 'started_at' end
    if not is_whole(finished_at) or (state > RUNNING) ~= (finished_at ~= NONE) then return 'finished_at' end
    if not is_whole(prune_at) then return 'prune_at' end
    if not is_whole(keep_last) then return 'keep_last' end
  elseif held or state >= RUNNING then
    return 'state'
  end
  if (state == RUNNING and not held) or (state < RUNNING and held) then return 'state' end
  if bit.band(marks, PARKED) ~= 0 and (state ~= READY or bit.band(marks, LIMITED) == 0) then return 'parked' end
  return flaw_in_rest(text, at, marks)
end

-- Mark a job that unreadable.py must set aside. Nothing depends on it, so a full memory may refuse it.
local function mark_unreadable(id) redis.pcall('ZADD', unread, 0, id) end

-- Move a value that cannot be read out of the way and keep it, for `doctor` and export. `name`: of its key.
local function set_value_aside(name, key, field, text, now)
  redis.pcall('HSET', unreadable, 'v' .. name .. '\0' .. field, struct.pack('<d', now) .. text)
  call('HDEL', key, field)
end

-- Count up or down. The audit counts anew what is no number, or is at its maximum. Until then no job starts under such a limit.
local function add_to(key, field, difference)
  if difference == 0 then return end
  local sum = redis.pcall('HINCRBY', key, field, difference)
  if type(sum) ~= 'number' then
    if key ~= gates then call('HDEL', key, field) end
    call('HSET', meta, 'miscounted', '1')
  elseif sum <= 0 then
    call('HDEL', key, field)
  end
end
