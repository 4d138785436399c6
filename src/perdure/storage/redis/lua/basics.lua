-- What every script begins with: the keys, numbers and formats that have a name, and the clock. Names cost nothing: they are
-- written into the text where they are used (see scripts.py).
--
-- KEYS  all keys of the store, in the order of keys.py; every script declares every key, so that a cluster can check them.
local jobs, rows, lanes, schedule, aside, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local expiring, ended, prunable, created, dead, named = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local outcomes, errors, progress, logs = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local held_keys, kept_keys, windows, counts, depths = KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local bounds, paused, meta, queues, workers = KEYS[22], KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local limits, gates, edges, unsettled, shelf, shelved = KEYS[27], KEYS[28], KEYS[29], KEYS[30], KEYS[31], KEYS[32]
local accounts, heads = KEYS[33], KEYS[34]

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

local STATE, MARKS, VERSION, ATTEMPT, FAILURES, LOSSES, STAMP, SETTLED = 1, 2, 3, 4, 5, 6, 7, 8
local LEASED_UNTIL, STARTED_AT, FINISHED_AT, PRUNE_AT, KEEP_LAST, LEASED_BY = 9, 10, 11, 12, 13, 14
local REST_TEXT, ID, LEASE, SCOPE, LANE, DETAILS = 15, 16, 17, 18, 19, 20

-- marks of a row
local SUSPECT, PARKED, HIDDEN, HOLDS_KEY = 1, 2, 4, 8
local HAS_OUTCOME, HAS_ERRORS, HAS_PROGRESS, HAS_LOG = 16, 32, 64, 128
local RAN, HELD, HAS_SETTLED, FOLLOWED = 256, 512, 1024, 2048
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

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
