-- Part of exchange and promote: scheduled jobs whose time has come become ready, the earliest first. Gives how many.

-- When the first scheduled job is due; nil: there is none.
local function first_due()
  local due = tonumber(call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2] or nil)
  return due and math.max(NONE, math.min(due, MOST))
end

local function promote_due(now, limit)
  local due = call('ZRANGEBYSCORE', schedule, '-inf', now, 'LIMIT', 0, limit)
  load_rows(due)
  local promoted = 0
  for _, id in ipairs(due) do
    local row = rows_by_id[id]
    if row and row[STATE] == SCHEDULED and details(row).run_at > now then
      append(additions, schedule, details(row).run_at, id) -- the index was wrong
    elseif row and row[STATE] == SCHEDULED then
      leave_indexes(row)
      set_state(row, READY)
      row[VERSION] = row[VERSION] + 1
      reinsert(row)
      promoted = promoted + 1
    else
      append(removals, schedule, id) -- it is not what the index says
    end
  end
  if #due > 0 then write_all() end
  return promoted
end
