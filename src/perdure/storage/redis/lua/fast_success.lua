-- Part of the fast path of exchange: jobs whose holder reports success, with nothing beside it but a result. Returns a function
-- that writes this, and the position of the next argument. Returns nil, with nothing written, if the general path must apply one.
--
-- The reports come in runs of jobs with the same change: the change without id and start, the ids, the starts (or nothing), and
-- the results if the change has one. Rows that were claimed together have the same text, so the new text is made once for them.
local function try_fast_success(length, now)
  local ids, texts, over, pruned, results, kinds = {}, {}, {}, {}, {}, {}

  local function parse_run(run)
    local report, _, guard, options, keep = {}, nil, nil, nil, nil
    _, guard, report.attempt, report.stamp, report.state, report.failures, report.losses, options, _, _, keep, report.keep_last =
      struct.unpack(CHANGE, run)
    report.with_result = options == FREES_KEY + WITH_OUTCOME
    report.prune_at = keep == NONE and NONE or now + keep
    local plain = report.with_result or options == FREES_KEY
    return plain and guard == BY_HOLD and report.state > RUNNING and report.state ~= DEAD_STATE and report
  end

  -- The new text of a running row that ends: what comes before and behind the time of its start.
  local function kind_of(text, report)
    if not text or flaw_in(text) or bit.band(struct.unpack('<H', text, 2), RAN) == 0 then return false end
    local state, marks, version, attempt, _, _, stamp, _, _, started_at, _, _, _, _, at = struct.unpack(RUN, text)
    local kept = bit.band(marks, WAITED + FINISHED + FAIR) -- the end of a job depends on none of these
    if bit.band(marks, bit.bnot(HAS_ACCEPTED_STAMP)) - kept ~= RAN + HELD then return false end
    if state ~= RUNNING or attempt ~= report.attempt or stamp ~= report.stamp then return false end
    local _, _, lane = struct.unpack(FIRST, text, at)
    local kind = { lane = lane, state = report.state, length = 0, started_at = struct.pack('<d', started_at) }
    marks = RAN + HAS_ACCEPTED_STAMP + kept + (report.with_result and HAS_OUTCOME or 0)
    kind.before = struct.pack('<BHI4I4I4I4c8c8d', report.state, marks, version + 1, attempt, report.failures, report.losses, NOBODY,
      stamp, NONE)
    kind.behind = struct.pack('<dddH', now, report.prune_at, report.keep_last, 0) .. string.sub(text, at)
    -- see `ended_member`
    kind.over = string.match(lane, '%z([^%z]*)') .. '\0o\0'
      .. (report.keep_last == NONE and '-' or string.format('%.0f', report.keep_last)) .. '\0'
      .. struct.pack('>I8', now + 2251799813685248)
    kinds[#kinds + 1] = kind
    return kind
  end

  local at, last = 5, 0
  for _ = 1, tonumber(ARGV[4]) do
    local report, listed, starts = parse_run(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
    if not report then return nil end
    at = at + 3
    local before, known, kind = last, nil, nil
    last = before + #listed / 16
    for number = 1, last - before do ids[before + number] = string.sub(listed, 16 * number - 15, 16 * number) end
    local prune_at = report.prune_at ~= NONE and string.format('%.0f', report.prune_at)
    for number, text in ipairs(call('HMGET', rows, unpack(ids, before + 1, last))) do
      if text ~= known then
        known, kind = text, kind_of(text, report)
        if not kind then return nil end
      end
      local id, place = ids[before + number], 2 * (before + number)
      local started_at = starts == '' and kind.started_at or string.sub(starts, 8 * number - 7, 8 * number)
      texts[place - 1], texts[place] = id, kind.before .. started_at .. kind.behind
      over[place - 1], over[place] = '0', kind.over .. id
      kind.length = kind.length + 1
      if prune_at then
        local next_one = #pruned + 1
        pruned[next_one], pruned[next_one + 1] = prune_at, id
      end
      if report.with_result then
        local next_one = #results + 1
        results[next_one], results[next_one + 1] = id, ARGV[at]
        at = at + 1
      end
    end
  end
  if last ~= length then return nil end

  local function write(tally)
    call('ZREM', leases, unpack(ids)) -- a removal first: see `write_all`
    call('HSET', rows, unpack(texts))
    if #results > 0 then call('HSET', outcomes, unpack(results)) end
    call('ZADD', ended, unpack(over))
    if #pruned > 0 then call('ZADD', prunable, unpack(pruned)) end
    for _, kind in ipairs(kinds) do
      tally(kind.lane, RUNNING, -kind.length)
      tally(kind.lane, kind.state, kind.length)
    end
  end

  return write, at
end
