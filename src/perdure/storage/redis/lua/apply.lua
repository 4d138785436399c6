-- Part of exchange: judges changes by their guards and writes those that hold. Gives an answer per change, or nothing and
-- {'orphan', job, parent} if one of the jobs that come with a change would wait for nobody.
local apply_changes

do
  -- A change is a list too: what CHANGE has and, if its options say so, the texts of outcome and errors, next_id, and jobs to be
  -- added.
  local WHOM, GUARD, NUMBER, GUARD_STAMP, NEW_STATE, NEW_FAILURES, NEW_LOSSES, OPTIONS = 1, 2, 3, 4, 5, 6, 7, 8
  local TIME, NEW_STARTED_AT, KEEP, NEW_KEEP_LAST, OUTCOME, ERRORS, NEXT = 9, 10, 11, 12, 13, 14, 15

  local function has_option(change, option) return band(change[OPTIONS], option) ~= 0 end

  local function judge(row, change, now)
    if not row then return 5 end
    local guard = change[GUARD]
    if guard <= BY_ENDED_HOLD then
      local fits = guard == BY_HOLD and row[STATE] == RUNNING or guard == BY_ENDED_HOLD and row[STATE] > RUNNING
      if fits and has_hold(row, change[NUMBER], change[GUARD_STAMP]) then return 0 end
      if has(row, HAS_ACCEPTED_STAMP) and row[ACCEPTED_STAMP] == change[GUARD_STAMP] then return 1 end
      return why_lost(row, change[NUMBER], change[GUARD_STAMP])
    end
    local over = row[LEASED_UNTIL] ~= NONE and row[LEASED_UNTIL] <= now
    if row[VERSION] ~= change[NUMBER] or (guard == BY_LAPSE and not over) then return 6 end
    return 0
  end

  local function take_key(row)
    local unique = details(row).unique
    if unique == '' then return end
    mark(row, HOLDS_KEY, true)
    key_owners[unique] = row[ID]
    append(field_writes, held_keys, unique, row[ID])
  end

  local function write_texts(row, change)
    if change[OUTCOME] then
      append(field_writes, outcomes, row[ID], change[OUTCOME])
      mark(row, HAS_OUTCOME, true)
    elseif has(row, HAS_OUTCOME) then
      append(field_removals, outcomes, row[ID])
      mark(row, HAS_OUTCOME, false)
    end
    if change[ERRORS] then
      append(field_writes, errors, row[ID], change[ERRORS])
      mark(row, HAS_ERRORS, true)
    end
  end

  -- A rank that is not the run_at is a share of a fair queue: it stays, or moves back by one share.
  local function write_time(row, time, pays)
    local found = details(row)
    if found.rank == found.run_at then
      found.rank = time
    elseif pays then
      found.rank = found.rank + SHARE
    end
    found.run_at = time
    mark(row, FAIR, found.rank ~= time)
    row[REST_TEXT] = rest_of(found)
  end

  local function write_next(row, id)
    local gate, _, hidden, keep, keep_last = more_of(row)
    local found = details(row)
    found.more = pack(MORE, #gate, gate, #id, id, hidden, keep, keep_last)
    row[REST_TEXT] = rest_of(found)
  end

  local function write_values(row, change, now)
    local state = change[NEW_STATE]
    if has_option(change, HAS_TIME) then
      write_time(row, has_option(change, TIME_IS_INSTANT) and change[TIME] or now + change[TIME], has_option(change, PAYS))
    end
    if state == SCHEDULED and details(row).run_at <= now then state = READY end
    if state <= RUNNING then
      row[FINISHED_AT] = NONE
    elseif row[STATE] <= RUNNING then
      row[FINISHED_AT] = now
    end
    set_state(row, state)
    row[FAILURES], row[LOSSES] = change[NEW_FAILURES], change[NEW_LOSSES]
    mark(row, SUSPECT, has_option(change, IS_SUSPECT))
    mark(row, HIDDEN, has_option(change, IS_HIDDEN))
    write_texts(row, change)
    if change[NEW_STARTED_AT] ~= NONE then row[STARTED_AT] = change[NEW_STARTED_AT] end
    row[PRUNE_AT] = change[KEEP] == NONE and NONE or now + change[KEEP]
    row[KEEP_LAST] = change[NEW_KEEP_LAST]
    if change[NEXT] then write_next(row, change[NEXT]) end
  end

  local function write(row, change, now)
    local state = change[NEW_STATE]
    leave_indexes(row)
    row[VERSION] = row[VERSION] + 1
    if change[GUARD] <= BY_ENDED_HOLD and state > 0 then
      row[ACCEPTED_STAMP] = change[GUARD_STAMP]
      mark(row, HAS_ACCEPTED_STAMP, true)
    end
    if state == 0 or not has_option(change, KEEPS_HOLD) then
      if has(row, HELD) and has(row, LIMITED) then ready_queues[queue_of(row[LANE])] = true end
      row[STAMP], row[LEASED_BY], row[LEASED_UNTIL] = NOBODY, '', NONE
      mark(row, HELD, false)
    end
    if state == 0 or has_option(change, FREES_KEY) then
      free_key(row)
    elseif has_option(change, TAKES_KEY) then
      take_key(row)
    end
    if state > 0 then write_values(row, change, now) end
    reinsert(row)
    if row[STATE] > RUNNING then
      any_ended = true
      if has(row, FOLLOWED) then mark_unresolved(row[ID]) end
    end
  end

  -- A chain goes on with the owner of a key that its next job would share.
  local function continue_with_owners(row, change, added, owners)
    for at = 1, #owners, 3 do
      if owners[at + 1] == 'owner' and added[owners[at]].id == change[NEXT] then
        write_next(row, owners[at + 2])
        save(row)
      end
    end
  end

  local function apply(row, change, now)
    local answer = judge(row, change, now)
    if answer == 0 and has_option(change, TAKES_KEY) then
      local owner = details(row).unique ~= '' and holder_of(details(row).unique)
      if owner and owner ~= row[ID] then return 7 end
    end
    if answer == 0 then write(row, change, now) end
    return answer
  end


  -- ---- the way most jobs end --------------------------------------------------------------------------------------------
  -- The holder reports the end of a running row without special marks, so the new text follows from the old one. Rows
  -- that were enqueued and claimed together have the same text, so that one of them is parsed for all.
  local RUNS, RUNS_AGAIN, ENDS = RAN + HELD, RAN + HELD + HAS_ACCEPTED_STAMP, RAN + HAS_ACCEPTED_STAMP
  local OVER = WAITED + FINISHED + FAIR + LIMITED -- marks that matter no more, but for the slots of limited ones
  local plain_rows = {}

  local function plain_row(text)
    local row = plain_rows[text]
    if row == nil then
      row = read_row('', text) or false
      if row then
        local over = band(row[MARKS], OVER)
        local marks = row[MARKS] - over
        row.over, row.gate = over, more_of(row)
        if row[STATE] ~= RUNNING or (marks ~= RUNS and marks ~= RUNS_AGAIN) then row = false end
      end
      plain_rows[text] = row
    end
    return row
  end

  local function try_plain_end(id, text, packed, outcome, now)
    local row = plain_row(text)
    if not row then return false end
    local _, guard, number, stamp, state, failures, losses, options, _, started_at, keep, keep_last = parse(CHANGE, packed)
    if guard ~= BY_HOLD or state <= RUNNING or state == DEAD_STATE or row[ATTEMPT] ~= number or row[STAMP] ~= stamp
      or (options ~= FREES_KEY and options ~= FREES_KEY + WITH_OUTCOME) then
      return false
    end
    local prune_at, marks = NONE, ENDS + row.over
    add_count(row[LANE], RUNNING, -1)
    add_count(row[LANE], state, 1)
    append(removals, leases, id)
    if band(row.over, LIMITED) ~= 0 then
      leave_slots(row.gate)
      ready_queues[queue_of(row[LANE])] = true
    end
    if outcome then
      marks = marks + HAS_OUTCOME
      append(field_writes, outcomes, id, outcome)
    end
    if keep ~= NONE then
      prune_at = now + keep
      append(additions, prunable, prune_at, id)
    end
    if started_at == NONE then started_at = row[STARTED_AT] end
    local text_now = pack(RUN, state, marks, row[VERSION] + 1, number, failures, losses, NOBODY, stamp, NONE, started_at, now,
      prune_at, keep_last, 0, '') .. row[REST_TEXT]
    append(field_writes, rows, id, text_now)
    append(additions, ended, 0, ended_group(row[LANE], state, keep_last) .. sortable(now) .. id)
    rows_by_id[id] = false -- nothing more is said about it in this script
    any_ended = true
    return true
  end

  -- Changes that come in runs (see fast_success.lua), one after the other.
  local function changes_in_runs()
    local run, ids, starts, at = '', '', '', 0
    return function()
      if at == #ids / 16 then run, ids, starts, at = argument(), argument(), argument(), 0 end
      at = at + 1
      local started_at = starts == '' and sub(run, 49, 56) or sub(starts, 8 * at - 7, 8 * at)
      return sub(ids, 16 * at - 15, 16 * at) .. sub(run, 17, 48) .. started_at .. sub(run, 57)
    end
  end

  function apply_changes(now)
    local packed, ids, outcome_of, errors_of, next_of, adds_of, writer, answers = {}, {}, {}, {}, {}, {}, nil, {}
    local length, next_change = tonumber(argument()), argument
    local runs = tonumber(argument())
    if runs > 0 then next_change = changes_in_runs() end
    for number = 1, length do
      local change = next_change()
      local options = parse('<H', change, 39)
      packed[number], ids[number] = change, sub(change, 1, 16)
      outcome_of[number] = options >= WITH_OUTCOME and band(options, WITH_OUTCOME) ~= 0 and argument()
      errors_of[number] = options >= WITH_ERRORS and band(options, WITH_ERRORS) ~= 0 and argument()
      if options >= WITH_NEXT then
        next_of[number] = band(options, WITH_NEXT) ~= 0 and argument()
        if options >= WITH_ADDS then
          writer = writer or job_writer(now)
          adds_of[number] = writer.read()
        end
      end
    end
    local orphan = writer and writer.refuse_orphans(adds_of)
    if orphan then return nil, orphan end
    local texts = row_texts(ids)
    for number, id in ipairs(ids) do
      local text = texts[number]
      if text and try_plain_end(id, text, packed[number], outcome_of[number], now) then
        answers[number] = 0
      else
        local change = { parse(CHANGE, packed[number]) }
        change[OUTCOME], change[ERRORS], change[NEXT] = outcome_of[number], errors_of[number], next_of[number]
        answers[number] = apply(row_with_id(id, text), change, now)
        if answers[number] == 0 and adds_of[number] then
          local refused, owners, fresh = writer.plan(adds_of[number], false)
          if refused then return nil, refused end
          writer.store(fresh)
          continue_with_owners(rows_by_id[id], change, adds_of[number], owners)
        end
      end
    end
    return answers
  end
end
