-- List jobs whose lease is over, the longest over first. Leases that reach too far are shortened first.
--
-- KEYS     see constants.lua
-- ARGV     now, limit, the longest lease to return
-- returns  {records (see `add_records`), some ids of jobs that are to be set aside, whether the audit should count anew, and
--          whether it should check all rows}
local now, limit, longest = time_of_call(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

-- A lease reaches further than now + lease only if it was given after now: then the clock went back, and all leases are checked.
local function shorten_leases()
  local ids = call('ZRANGE', leases, 0, -1)
  load_rows(ids)
  for _, id in ipairs(ids) do
    local row = rows_by_id[id]
    if row and row[LEASED_UNTIL] > now + row[LEASE] then
      row[LEASED_UNTIL] = now + row[LEASE]
      append(additions, leases, row[LEASED_UNTIL], id)
      save(row)
    end
  end
  append(field_writes, meta, 'given', string.format('%.0f', now))
  write_all()
end

if (number_in(meta, 'given') or NONE) > now then shorten_leases() end

for _, key in ipairs({ lanes, heads, aside, ended, named, limits, edges, kv_index, unresolved }) do reset_scores(key) end

if call('EXISTS', heads) == 0 and call('EXISTS', paused) == 0 and call('EXISTS', lanes) == 1 then make_heads() end

-- An index entry that contradicts its row is corrected, so that no job is reaped again and again without need.
local function is_over(id)
  local row = rows_by_id[id]
  if not row or not has(row, HELD) then
    append(removals, leases, id)
  elseif row[LEASED_UNTIL] > now then
    append(additions, leases, row[LEASED_UNTIL], id)
  else
    return row[LEASE] <= longest
  end
end

local over, skipped = {}, 0
while #over < limit do
  local ids = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load_rows(ids)
  for _, id in ipairs(ids) do
    if #over < limit and is_over(id) then over[#over + 1] = id end
  end
end
if next(removals) or next(additions) then write_all() end
local answer = {}
add_records(answer, over)
return { answer, call('ZRANGE', unread, 0, AT_ONCE - 1), call('HEXISTS', meta, 'miscounted'), call('HEXISTS', meta, 'damaged') }
