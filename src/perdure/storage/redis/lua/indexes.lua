-- Part of every verb: the members of a row in the indexes, checks of holds, and records in an answer.
-- Numbers as eight bytes whose order is theirs. Within a script most of them are the same.
local last_sortable, last_text

local function sortable(number)
  if number ~= last_sortable then
    last_sortable, last_text = number, pack('>I8', number + 2251799813685248)
  end
  return last_text
end

local queues_of, tasks_of = {}, {}

local function queue_of(lane)
  local queue = queues_of[lane]
  if not queue then
    queue = match(lane, '^[^%z]*')
    queues_of[lane] = queue
  end
  return queue
end

local function task_of(lane)
  local task = tasks_of[lane]
  if not task then
    task = match(lane, '%z([^%z]*)')
    tasks_of[lane] = task
  end
  return task
end

-- A lane's members begin with: r (s for suspects, p for parked ones), the row's version, queue NUL task NUL routing key NUL.
-- They go on with priority (the highest first), rank, id and, as long as it matters, when it expires.
local function lane_prefix(kind, lane, min_version) return kind .. string.char(min_version) .. lane .. '\0' end

local function sort_key(priority, rank) return pack('>I4', 2147483647 - priority) .. sortable(rank) end

local function lane_head(lane, suspect, min_version, priority, rank)
  return lane_prefix(suspect and 's' or 'r', lane, min_version) .. sort_key(priority, rank)
end

local function may_expire(row) return row[STARTED_AT] == NONE and details(row).expires_at ~= NONE end

local function lane_suffix(row)
  local found = details(row)
  return sort_key(found.priority, found.rank) .. row[ID] .. (may_expire(row) and pack('<d', found.expires_at) or '')
end

local function lane_member(row)
  return lane_prefix(has(row, SUSPECT) and 's' or 'r', row[LANE], details(row).min_version) .. lane_suffix(row)
end

-- A parked job is in a line: its gate (16 bytes that stand for its limits) and the start of its lane.
local function line_of(row)
  local kind = has(row, SUSPECT) and 's' or 'r'
  return sub(more_of(row), 1, 16) .. lane_prefix(kind, row[LANE], details(row).min_version)
end

local function line_member(row) return 'p' .. line_of(row) .. lane_suffix(row) end

-- Jobs that wait neither in a lane nor for a time: state, queue NUL run_at id.
local function aside_member(state, lane, run_at, id) return state .. queue_of(lane) .. '\0' .. sortable(run_at) .. id end

-- Ended jobs of a task: task NUL dead or other NUL keep_last NUL finished_at id.
local function ended_group(lane, state, keep_last)
  local kept = keep_last == NONE and '-\0' or string.format('%.0f', keep_last) .. '\0'
  return task_of(lane) .. (state == DEAD_STATE and '\0d\0' or '\0o\0') .. kept
end

local function ended_member(row)
  return ended_group(row[LANE], row[STATE], row[KEEP_LAST]) .. sortable(row[FINISHED_AT]) .. row[ID]
end

local function leave(key, member) append(removals, key, member) end
local function join(key, member) append(additions, key, 0, member) end

-- A ready job that is parked or has a share is in several indexes.
local function move_special(row, move)
  move(aside, aside_member(READY, row[LANE], details(row).run_at, row[ID]))
  if not has(row, PARKED) then return move(lanes, lane_member(row)) end
  changed_lines[line_of(row)] = true
  move(limits, line_member(row))
  if has(row, SUSPECT) then move(lanes, lane_prefix('p', row[LANE], details(row).min_version) .. lane_suffix(row)) end
end

local function leave_waiting(row)
  if may_expire(row) then append(removals, expiring, row[ID]) end
  if row[STATE] == SCHEDULED then
    append(removals, schedule, row[ID])
  elseif row[STATE] == BLOCKED then
    append(removals, aside, aside_member(BLOCKED, row[LANE], details(row).run_at, row[ID]))
  elseif band(row[MARKS], PARKED + FAIR) ~= 0 then
    move_special(row, leave)
  else
    append(removals, lanes, lane_member(row))
  end
end

-- What a gate (see more_of) stands for: key, most at once, starts in a window, window; each number may be NONE.
-- Beside them its slots: the fields of `gates` that say how many hold under each key, and their keys.
local LIMIT = '<Hc0ddd'
local parsed_gates = {}

local function slot_of(key) return 's' .. key end

local function limits_of(gate)
  local found = parsed_gates[gate]
  if not found then
    local at = 17
    found = { slots = {} }
    while at <= #gate do
      local limit = {}
      limit.key, limit.most, limit.starts, limit.window, at = parse(LIMIT, gate, at)
      found[#found + 1] = limit
      found.slots[slot_of(limit.key)] = limit.key
    end
    parsed_gates[gate] = found
  end
  return found
end

-- A hold of a limited job counts once under each of its keys.
local function enter_slots(gate)
  for slot in pairs(limits_of(gate).slots) do slot_changes[slot] = (slot_changes[slot] or 0) + 1 end
end

local function leave_slots(gate)
  for slot, key in pairs(limits_of(gate).slots) do
    slot_changes[slot] = (slot_changes[slot] or 0) - 1
    freed_keys[key] = true
  end
end

-- Take a row out of its indexes, before it changes.
local function leave_indexes(row)
  local state, hidden = row[STATE], has(row, HIDDEN)
  if not hidden then add_count(row[LANE], state, -1) end
  if state <= READY then
    leave_waiting(row)
  elseif state > RUNNING and not hidden then
    append(removals, ended, ended_member(row))
    if state == DEAD_STATE then append(removals, dead, row[ID]) end
  end
  if has(row, HELD) then
    append(removals, leases, row[ID])
    if has(row, LIMITED) then leave_slots((more_of(row))) end
  end
  if row[PRUNE_AT] ~= NONE then append(removals, prunable, row[ID]) end
end

local function enter_waiting(row)
  local found = details(row)
  if may_expire(row) then append(additions, expiring, found.expires_at, row[ID]) end
  if row[STATE] ~= BLOCKED then ready_queues[queue_of(row[LANE])] = true end
  if row[STATE] == SCHEDULED then
    append(additions, schedule, found.run_at, row[ID])
  elseif row[STATE] == BLOCKED then
    append(additions, aside, 0, aside_member(BLOCKED, row[LANE], found.run_at, row[ID]))
  elseif band(row[MARKS], PARKED + FAIR) ~= 0 then
    move_special(row, join)
  else
    append(additions, lanes, 0, lane_member(row))
  end
end

-- Put a row where it belongs as it is now.
local function enter_indexes(row)
  local state, hidden = row[STATE], has(row, HIDDEN)
  if not hidden then add_count(row[LANE], state, 1) end
  if state <= READY then
    enter_waiting(row)
  elseif state > RUNNING and not hidden then
    append(additions, ended, 0, ended_member(row))
    if state == DEAD_STATE then append(additions, dead, details(row).created_at, row[ID]) end
  end
  if has(row, HELD) then
    append(additions, leases, row[LEASED_UNTIL], row[ID])
    if has(row, LIMITED) then enter_slots((more_of(row))) end
  end
  if row[PRUNE_AT] ~= NONE then append(additions, prunable, row[PRUNE_AT], row[ID]) end
end

local function reinsert(row)
  enter_indexes(row)
  return save(row)
end

-- The state, and whether the job waits for room under its limits.
local function set_state(row, state)
  row[STATE] = state
  mark(row, PARKED, state == READY and has(row, LIMITED))
end

local function free_key(row)
  if has(row, HOLDS_KEY) then
    local unique = details(row).unique
    key_owners[unique] = false
    append(field_removals, held_keys, unique)
    mark(row, HOLDS_KEY, false)
  end
end

-- The job that holds a unique key indeed; false: none. What names another job, or one whose row cannot be read, is not believed.
local function holder_of(unique)
  local owner = key_owners[unique]
  if owner == nil then
    owner = call('HGET', held_keys, unique)
    local text = owner and call('HGET', rows, owner)
    local row = text and read_row(owner, text)
    if not (row and has(row, HOLDS_KEY) and details(row).unique == unique) then owner = false end
    key_owners[unique] = owner
  end
  return owner
end

-- ---- holds -----------------------------------------------------------------------------------------------------------
-- Answers: 0 accepted, 1 repeated, 2 taken, 3 completed, 4 cancelled, 5 not found, 6 stale, 7 key taken.
-- A later attempt means that another worker took the job, whatever became of it since; upkeep took one that it made a dead letter.
local function why_lost(row, attempt, stamp)
  local accepted_ours = has(row, HAS_ACCEPTED_STAMP) and row[ACCEPTED_STAMP] == stamp
  if row[ATTEMPT] > attempt or (row[STATE] == DEAD_STATE and not accepted_ours) then return 2 end
  if has(row, HIDDEN) then return 5 end
  if row[STATE] == CANCELLED then return 4 end
  return row[STATE] > RUNNING and 3 or 2
end

local function has_hold(row, attempt, stamp) return row[ATTEMPT] == attempt and row[STAMP] == stamp and has(row, HELD) end

local function check_hold(row, attempt, stamp)
  if not row then return 5 end
  if row[STATE] == RUNNING and has_hold(row, attempt, stamp) then return 0 end
  return why_lost(row, attempt, stamp)
end

-- Write when the last lease was given. If the clock shows an earlier time, it went back.
local function note_lease_time(now)
  local last = number_in(meta, 'given')
  if not last or last < now then append(field_writes, meta, 'given', string.format('%.0f', now)) end
end

local HOLD = '<c16I4c8d' -- id, attempt, stamp, and when the handler began

-- Set when handlers began (so many arguments follow), for holds that are still valid. Returns the rows that changed.
local function apply_starts(length)
  local began, ids = {}, {}
  for number = 1, length do
    began[number] = { parse(HOLD, argument()) }
    ids[number] = began[number][1]
  end
  load_rows(ids)
  local changed_rows = {}
  for _, hold in ipairs(began) do
    local row = rows_by_id[hold[1]]
    if check_hold(row, hold[2], hold[3]) == 0 then
      row[STARTED_AT] = hold[4]
      changed_rows[row[ID]] = row
    end
  end
  return changed_rows
end

-- Whether an id sorts before another; bytes are compared as numbers. What is no id sorts last.
local function id_before(one, other)
  if #one < 16 or #other < 16 then return #one > #other end
  local a, b = { parse('>I4I4I4I4', one) }, { parse('>I4I4I4I4', other) }
  for number = 1, 4 do
    if a[number] ~= b[number] then return a[number] < b[number] end
  end
  return false
end

-- ---- records ---------------------------------------------------------------------------------------------------------
local EXTRAS = HAS_OUTCOME + HAS_ERRORS + HAS_PROGRESS

-- Append to `answer`, for each id: id, row, body and those of outcome, errors, progress that its marks tell of.
-- An id that is not on record is left out. `written_rows`: the rows' texts, if they have just been written.
local function add_records(answer, ids, written_rows)
  each_slice(ids, AT_ONCE, function(from, to)
    local texts = written_rows and { unpack(written_rows, from, to) } or call('HMGET', rows, unpack(ids, from, to))
    local bodies = call('HMGET', jobs, unpack(ids, from, to))
    for number = 1, #texts do
      local text, body = texts[number], bodies[number]
      if text and not body then mark_unreadable(ids[from + number - 1]) end
      if text and body then
        local id, at = ids[from + number - 1], #answer
        answer[at + 1], answer[at + 2], answer[at + 3] = id, text, body
        local marks = #text > 2 and parse('<H', text, 2) or 0
        if band(marks, EXTRAS) ~= 0 then
          if band(marks, HAS_OUTCOME) ~= 0 then answer[#answer + 1] = call('HGET', outcomes, id) or '' end
          if band(marks, HAS_ERRORS) ~= 0 then answer[#answer + 1] = call('HGET', errors, id) or '' end
          if band(marks, HAS_PROGRESS) ~= 0 then answer[#answer + 1] = call('HGET', progress, id) or '' end
        end
      end
    end
  end)
end
