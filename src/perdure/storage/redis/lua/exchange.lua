-- Apply changes, write when handlers began, then claim jobs.
--
-- KEYS     see constants.lua
-- ARGV     now, origin,
--          number of changes, and of the runs in which they come (see fast_success.lua), or 0; if 0, for each: the change (see
--          apply.lua) and, if it says so, outcome and errors,
--          number of notes of what began, the notes (see HOLD),
--          number of wants or -1 for no claim; with a claim: worker, stamp, chunk, the highest row version we know, then for
--          each want: limit, 'alone' or 'any', 'limited' or 'plain', routing ('*', '-' or '=' and the key), number of queues
--          (-1: all), queues, number of tasks (-1: all), tasks
-- returns  {an answer per change (see indexes.lua) as one text, queues that have ready jobs now, whether a job ended,
--          microseconds until the next scheduled job or false, whether there are suspects, claimed records (see `add_records`;
--          lists of them: see fast_claim.lua),
--          whether edges are left to resolve, ids of jobs that are to be set aside}; or {'orphan', job, parent} when nothing was written

local WAITING_SCOPE = 1
local now, origin = time_of_call(argument()), argument()

local answers, orphan = apply_changes(now)
if orphan then return orphan end
local begun = tonumber(argument())
for _, row in pairs(apply_starts(begun)) do save(row) end
local pending = #answers + begun > 0
local want_count = tonumber(argument())

-- A claim reads lanes, schedule and limits, so changes of these are written first. Everything else is written once, at the end.
local resolves = additions[unresolved] or call('ZCARD', unresolved) > 0
if pending and (want_count < 0 or resolves or additions[lanes] or removals[lanes] or additions[schedule] or removals[schedule] or removals[limits]
  or additions[limits] or next(slot_changes)) then
  write_all()
  pending = false
  if next(changed_lines) or next(freed_keys) then update_gates(now) end
end
local still_unresolved = 0
if resolves then
  resolve(now, AT_ONCE)
  still_unresolved = call('EXISTS', unresolved)
end
if want_count < 0 then
  return { table.concat(answers), publish_signals(origin), any_ended and 1 or 0, false, 0, {}, still_unresolved, list_unreadable() }
end

-- ---- claim -----------------------------------------------------------------------------------------------------------
local worker, stamp, chunk, newest = argument(), argument(), tonumber(argument()), tonumber(argument())
reset_scores(lanes)
reset_scores(heads)
reset_scores(limits)
promote_due(now, chunk)
if next(changed_lines) then update_gates(now) end

local function listed()
  local length = tonumber(argument())
  if length < 0 then return nil end
  local list = {}
  for number = 1, length do list[number] = argument() end
  return list
end

local function next_want()
  local want = { newest = newest, limit = tonumber(argument()), alone = argument() == 'alone' }
  want.limited = argument() == 'limited'
  local routing = argument()
  if routing ~= '*' then want.routing = routing end
  want.queues, want.tasks = listed(), listed()
  return want
end

local function run(row)
  row[STATE], row[ATTEMPT], row[VERSION] = RUNNING, row[ATTEMPT] + 1, row[VERSION] + 1
  row[STAMP], row[LEASED_BY], row[LEASED_UNTIL], row[STARTED_AT] = stamp, worker, now + row[LEASE], NONE
  mark(row, HELD, true)
  if row[SCOPE] == WAITING_SCOPE then free_key(row) end
end

-- The way of `leave_indexes` and `reinsert`, but for what is known here: the row is in this lane and goes to the leases.
local function claim(row, member, lane)
  if has(row, FAIR) then move_special(row, leave) else append(removals, lanes, member) end
  if #member - #lane > 28 then append(removals, expiring, row[ID]) end
  add_count(row[LANE], READY, -1)
  add_count(row[LANE], RUNNING, 1)
  run(row)
  append(additions, leases, row[LEASED_UNTIL], row[ID])
  return save(row)
end

-- Whether a row is where the index has it. A row that was never claimed has never left its lane.
local function belongs(row, member)
  return row and row[STATE] == READY and not has(row, PARKED) and (not has(row, RAN) or lane_member(row) == member)
end

-- Rows that were enqueued together and never claimed have the same text, before and after: one is parsed for all.
local fresh_rows, fresh_parked = {}, {}

local function claimed_row(row, marks)
  local leased_until = now + row[LEASE]
  local text = pack(RUN, RUNNING, RAN + HELD + marks, row[VERSION] + 1, 1, 0, 0, stamp, NOBODY, leased_until, NONE, NONE, NONE,
    NONE, #worker, worker) .. row[REST_TEXT]
  return { lane = row[LANE], leased_until = leased_until, text = text }
end

local function fresh_row(text)
  local fresh = fresh_rows[text]
  if fresh == nil then
    local row = read_row('', text)
    fresh = row and row[STATE] == READY and row[MARKS] == 0 and claimed_row(row, 0) or false
    fresh_rows[text] = fresh
  end
  return fresh
end

-- The same for those under limits that never expire: also their gate and line, and how they stand in the indexes.
local function fresh_limited(text)
  local fresh = fresh_parked[text]
  if fresh == nil then
    local row = read_row('', text)
    fresh = row and row[STATE] == READY and row[MARKS] == LIMITED + PARKED and details(row).expires_at == NONE
      and claimed_row(row, LIMITED) or false
    if fresh then
      fresh.gate, fresh.line, fresh.line_member = more_of(row), line_of(row), line_member(row)
      fresh.aside_member = aside_member(READY, row[LANE], details(row).run_at, '')
    end
    fresh_parked[text] = fresh
  end
  return fresh
end

local function run_fresh(fresh, id)
  add_count(fresh.lane, READY, -1)
  add_count(fresh.lane, RUNNING, 1)
  append(additions, leases, fresh.leased_until, id)
  append(field_writes, rows, id, fresh.text)
  return fresh.text
end

local function claim_fresh(fresh, id, member, lane)
  append(removals, lanes, member)
  if #member - #lane > 28 then append(removals, expiring, id) end
  return run_fresh(fresh, id)
end

local claimed, claimed_texts, is_claimed = {}, {}, {}

local function claim_all(chosen)
  local ids = {}
  for number, choice in ipairs(chosen) do
    claimed_members[choice[1]] = true
    ids[number] = sub(choice[1], #choice[2] + 13, #choice[2] + 28)
  end
  local texts = row_texts(ids)
  for number, choice in ipairs(chosen) do
    local id, member, text, text_now = ids[number], choice[1], texts[number], nil
    local fresh = text and rows_by_id[id] == nil and fresh_row(text)
    if is_claimed[id] then
      append(removals, lanes, member) -- it stood there twice
    elseif fresh then
      text_now = claim_fresh(fresh, id, member, choice[2])
    elseif belongs(row_with_id(id, text), member) then
      text_now = claim(rows_by_id[id], member, choice[2])
    else
      append(removals, lanes, member) -- it is not what the index says
    end
    if text_now then
      local last = #claimed + 1
      claimed[last], claimed_texts[last], is_claimed[id] = id, text_now, true
    end
  end
end

-- ---- jobs under limits -------------------------------------------------------------------------------------------------
local limit_claimer, limited_wants = nil, {}

local function start_row(row)
  leave_indexes(row)
  run(row)
  mark(row, PARKED, false)
  return reinsert(row)
end

local function start_fresh(fresh, id)
  append(removals, aside, fresh.aside_member .. id)
  append(removals, limits, fresh.line_member .. id)
  changed_lines[fresh.line] = true
  enter_slots(fresh.gate)
  return run_fresh(fresh, id)
end

local function start(id, row, fresh)
  local last = #claimed + 1
  claimed[last], claimed_texts[last] = id, fresh and start_fresh(fresh, id) or start_row(row)
end

local function claim_limited(want)
  if not limit_claimer then
    if call('EXISTS', limits) == 0 then return end -- nobody is under limits
    limit_claimer = limit_claims(now, fresh_limited)
    limit_claimer.open_due()
  end
  limited_wants[#limited_wants + 1] = want
  want.more = limit_claimer.admit(want, want.limit, start)
end

-- When the next limited job may start that a want asks for; nil: unknown.
local function next_start()
  limit_claimer.finish()
  local again, found = nil, false
  for number, want in ipairs(limited_wants) do
    if want.more == 'yes' and not found and number < #limited_wants then -- the next ones may have used up the room
      again = again or limit_claims(now, fresh_limited)
      want.more = again.admit(want, 0)
    end
    found = found or want.more ~= 'no'
  end
  if again then again.finish() end
  return found and now or limit_claimer.next_opening(limited_wants)
end

-- ---- what each want gets -----------------------------------------------------------------------------------------------
local asked = {}
for number = 1, want_count do
  local want = next_want()
  asked[number] = want
  if want.limited then
    claim_limited(want)
  elseif want.limit > 0 then
    claim_all(best_of(want, want.alone and 's' or 'r', want.limit, now))
  end
end
if #claimed > 0 then note_lease_time(now) end
if pending or next(claimed_members) or next(removals) or additions[limits] then write_all() end

local function any_suspect()
  local suspects = call('ZRANGEBYLEX', lanes, '[s', '(t', 'LIMIT', 0, 1)[1]
  local parked = limit_claimer and call('ZRANGEBYLEX', lanes, '[p', '(q', 'LIMIT', 0, 1)[1]
  if not suspects and not parked then return 0 end
  for _, want in ipairs(asked) do
    if #best_of(want, want.limited and 'p' or 's', 1, now) > 0 then return 1 end
  end
  return 0
end

local due = first_due()
if next(unreadable_ids) then due = now end -- there may be others in their place
local opens = limit_claimer and next_start()
if opens then due = math.min(due or opens, opens) end
local records = {}
add_records(records, claimed, claimed_texts)
return {
  table.concat(answers), publish_signals(origin), any_ended and 1 or 0, due and math.max(0, due - now) or false, any_suspect(), records,
  still_unresolved, list_unreadable(),
}
