-- Part of the beginning of exchange: jobs that end as nearly all do, by the word of their holder, with success and nothing beside
-- it but a result. Gives what is to be written for them, or nil when one of them is not as usual; and where the argument behind
-- them is. A room of its own, made when it is entered.
--
-- They come in runs of jobs of which the same is said: a change without id and start, the ids, the starts (or nothing), and the
-- results if it says so. Rows that were claimed together have the same text: what becomes of it is worked out once.
--
-- Jobs under limits give up their slots. That is as usual while no gate is closed by a key: then nobody waits for a slot.
local function usual_ends(length, now)
  local ids, texts, over, pruned, results, kinds = {}, {}, {}, {}, {}, {}

  local function said_of(run)
    local said, _, guard, options, keep = {}, nil, nil, nil, nil
    _, guard, said.attempt, said.stamp, said.state, said.failures, said.losses, options, _, _, keep, said.keep_last =
      struct.unpack(CHANGE, run)
    said.with_result = options == FREES_KEY + WITH_OUTCOME
    said.prune_at = keep == NONE and NONE or now + keep
    local plain = said.with_result or options == FREES_KEY
    return plain and guard == BY_HOLD and said.state > RUNNING and said.state ~= DEAD_STATE and said
  end

  -- In which slots a row counts (see places.lua); false if somebody may wait for its end.
  local function slots_of(kind, text, at)
    local behind = select(13, struct.unpack(REST, text, at))
    local gate, from = struct.unpack(MORE, text, behind), 17
    while from <= #gate do
      local key, _
      key, _, _, _, from = struct.unpack('<Hc0ddd', gate, from)
      kind.slots['s' .. key] = true
    end
    return string.byte(call('ZRANGE', limits, 0, 0)[1] or '') ~= 98
  end

  -- How a row that runs is written when it ends: what stands before and behind the time of its start.
  local function kind_of(text, said)
    if not text or flaw_in(text) or bit.band(struct.unpack('<H', text, 2), RAN) == 0 then return false end
    local state, marks, version, attempt, _, _, stamp, _, _, started_at, _, _, _, _, at = struct.unpack(RUN, text)
    local kept = bit.band(marks, WAITED + FINISHED + FAIR + LIMITED) -- they matter no more, but for the slots
    if bit.band(marks, bit.bnot(HAS_ACCEPTED_STAMP)) - kept ~= RAN + HELD then return false end
    if state ~= RUNNING or attempt ~= said.attempt or stamp ~= said.stamp then return false end
    local _, _, lane = struct.unpack(FIRST, text, at)
    local kind = { lane = lane, state = said.state, length = 0, slots = {}, started_at = struct.pack('<d', started_at) }
    marks = RAN + HAS_ACCEPTED_STAMP + kept + (said.with_result and HAS_OUTCOME or 0)
    kind.before = struct.pack('<BHI4I4I4I4c8c8d', said.state, marks, version + 1, attempt, said.failures, said.losses, NOBODY,
      stamp, NONE)
    kind.behind = struct.pack('<dddH', now, said.prune_at, said.keep_last, 0) .. string.sub(text, at)
    -- see `among_ended`
    kind.over = string.match(lane, '%z([^%z]*)') .. '\0o\0'
      .. (said.keep_last == NONE and '-' or string.format('%.0f', said.keep_last)) .. '\0'
      .. struct.pack('>I8', now + 2251799813685248)
    if bit.band(marks, LIMITED) ~= 0 and not slots_of(kind, text, at) then return false end
    kinds[#kinds + 1] = kind
    return kind
  end

  local at, last = 5, 0
  for _ = 1, tonumber(ARGV[4]) do
    local said, listed, starts = said_of(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
    if not said then return nil end
    at = at + 3
    local before, known, kind = last, nil, nil
    last = before + #listed / 16
    for number = 1, last - before do ids[before + number] = string.sub(listed, 16 * number - 15, 16 * number) end
    local prune_at = said.prune_at ~= NONE and string.format('%.0f', said.prune_at)
    for number, text in ipairs(call('HMGET', rows, unpack(ids, before + 1, last))) do
      if text ~= known then
        known, kind = text, kind_of(text, said)
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
      if said.with_result then
        local next_one = #results + 1
        results[next_one], results[next_one + 1] = id, ARGV[at]
        at = at + 1
      end
    end
  end
  if last ~= length then return nil end

  local function write(tally, slots)
    call('ZREM', leases, unpack(ids)) -- a removal first: see `flush`
    call('HSET', rows, unpack(texts))
    if #results > 0 then call('HSET', outcomes, unpack(results)) end
    call('ZADD', ended, unpack(over))
    if #pruned > 0 then call('ZADD', prunable, unpack(pruned)) end
    for _, kind in ipairs(kinds) do
      tally(kind.lane, RUNNING, -kind.length)
      tally(kind.lane, kind.state, kind.length)
      for slot in pairs(kind.slots) do slots[slot] = (slots[slot] or 0) - kind.length end
    end
  end

  return write, at
end
