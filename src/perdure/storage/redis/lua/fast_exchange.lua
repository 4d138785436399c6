-- The beginning of exchange: what nearly always happens goes a short way, before anything else of the script is made. All is read
-- first; whatever is not as usual goes on below, with nothing written.
local function exchanged_as_usual(now, origin)
  local length, at, due, write_ends, write_claim, records = tonumber(ARGV[3]), 5, nil, nil, nil, {}
  local totals, deeper, slots = {}, {}, {}

  local function tally(lane, state, difference)
    local field = lane .. '\0' .. state
    totals[field] = (totals[field] or 0) + difference
    if state == READY then
      local queue = string.match(lane, '^[^%z]*')
      deeper[queue] = (deeper[queue] or 0) + difference
    end
  end

  local function add_all(key, differences)
    for field, difference in pairs(differences) do add_up(key, field, difference) end
  end

  if length > AT_ONCE or (length > 0 and ARGV[4] == '0') or call('EXISTS', unresolved, paused) > 0 then return nil end
  if length > 0 then
    write_ends, at = usual_ends(length, now)
    if not write_ends then return nil end
  end
  if ARGV[at] ~= '0' then return nil end -- starts are to be noted
  if ARGV[at + 1] ~= '-1' then
    due = tonumber(call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2] or nil)
    if due and (due <= now or due > MOST) then return nil end
    local more
    write_claim, records, more = usual_claim(at + 1, now)
    if not write_claim then return nil end
    if more then due = now end
  end

  if write_ends then write_ends(tally, slots) end
  if write_claim then write_claim(tally, slots) end
  add_all(counts, totals)
  add_all(depths, deeper)
  add_all(gates, slots)
  if length > 0 and origin ~= '' then redis.pcall('PUBLISH', meta .. ':changed', origin) end
  return { string.rep('0', length), {}, length > 0 and 1 or 0, due and due - now or false, 0, records, 0, {} }
end

do
  local answer = exchanged_as_usual(clock(ARGV[1]), ARGV[2])
  if answer then return answer end
end
