-- Part of exchange and promote: scheduled jobs whose time has come become ready, the earliest first. Gives how many.
local function promote(now, limit)
  local due = call('ZRANGEBYSCORE', schedule, '-inf', now, 'LIMIT', 0, limit)
  load(due)
  local promoted = 0
  for _, id in ipairs(due) do
    local row = known[id]
    if row and row[STATE] == SCHEDULED then
      lift(row)
      enter(row, READY)
      row[VERSION] = row[VERSION] + 1
      set_back(row)
      promoted = promoted + 1
    else
      note(gone, schedule, id) -- it is not what the index says
    end
  end
  if #due > 0 then flush() end
  return promoted
end
