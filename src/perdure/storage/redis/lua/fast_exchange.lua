-- The fast path of exchange: plain successes, and a claim from the only lane, before the rest of the script creates its functions.
-- It reads and checks everything first. If anything is out of the ordinary, it writes nothing, and the general path below runs.
local function try_fast_exchange(now, origin)
  local length, at, due, write_ends, write_claim, records = tonumber(ARGV[3]), 5, nil, nil, nil, {}
  local totals, deeper = {}, {}

  local function tally(lane, state, difference)
    local field = lane .. '\0' .. state
    totals[field] = (totals[field] or 0) + difference
    if state == READY then
      local queue = string.match(lane, '^[^%z]*')
      deeper[queue] = (deeper[queue] or 0) + difference
    end
  end

  local function add_all(key, differences)
    for field, difference in pairs(differences) do add_to(key, field, difference) end
  end

  -- Checked before the reports are read, so that a store with several lanes does not read them twice.
  local function has_one_lane()
    local first, last = call('ZRANGE', lanes, 0, 0)[1], call('ZRANGE', lanes, -1, -1)[1]
    return not first or lane_of(first) == lane_of(last)
  end

  if length > AT_ONCE or (length > 0 and ARGV[4] == '0') or call('EXISTS', unresolved, paused) > 0 then return nil end
  if not has_one_lane() then return nil end
  if length > 0 then
    write_ends, at = try_fast_success(length, now)
    if not write_ends then return nil end
  end
  if ARGV[at] ~= '0' then return nil end -- starts are to be noted
  if ARGV[at + 1] ~= '-1' then
    due = tonumber(call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2] or nil)
    if due and (due <= now or due > MOST) then return nil end
    write_claim, records = try_fast_claim(at + 1, now)
    if not write_claim then return nil end
  end

  if write_ends then write_ends(tally) end
  if write_claim then write_claim(tally) end
  add_all(counts, totals)
  add_all(depths, deeper)
  if length > 0 and origin ~= '' then redis.pcall('PUBLISH', meta .. ':changed', origin) end
  return { string.rep('0', length), {}, length > 0 and 1 or 0, due and due - now or false, 0, records, 0, {} }
end

do
  local answer = try_fast_exchange(time_of_call(ARGV[1]), ARGV[2])
  if answer then return answer end
end
