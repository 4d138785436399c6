-- Part of every verb that stores jobs: ranks in fair queues, where each tenant's jobs follow one another at a distance.
-- Made anew where a queue is fair. Gives a function: the rank of a job, for which its tenant has paid then.
local function fair_ranks(now)
  local balances, floors = {}, {}

  local function balance(account)
    local found = balances[account]
    if found == nil then
      found = number_in(accounts, account) or false
      balances[account] = found
    end
    return found
  end

  local function write_balance(account, rank)
    balances[account] = rank
    append(field_writes, accounts, account, string.format('%.0f', rank))
  end

  -- The smallest rank that is ready in a queue and priority: the least of the heads of its lanes, of so many that it does
  -- not take long.
  local function head_rank(queue, priority)
    local least, left, place = nil, 256, pack('>I4', 2147483647 - priority)
    local function visit(lane)
      local member = call('ZRANGEBYLEX', lanes, '[' .. lane .. place, below_prefix(lane .. place), 'LIMIT', 0, 1)[1]
      local rank = member and #member >= #lane + 12 and parse('>I8', member, #lane + 5) - 2251799813685248
      if rank and (not least or rank < least) then least = rank end
      left = left - 1
      return left > 0
    end
    for _, version in ipairs(versions_under(lanes, 'r')) do
      for _, task in ipairs(names_under(lanes, 'r' .. version .. queue .. '\0')) do
        local prefix = 'r' .. version .. queue .. '\0' .. task .. '\0'
        for _, routing in ipairs(names_under(lanes, prefix, left)) do
          if not visit(prefix .. routing .. '\0') then return least end
        end
      end
    end
    return least
  end

  local function floor_of(account, shape)
    if not floors[account] then
      local begins = (head_rank(shape.queue, shape.priority) or 0) - SHARE
      floors[account] = math.max(balance(account) or now, begins)
      write_balance(account, floors[account])
    end
    return floors[account]
  end

  local function rank_of(job, shares)
    local account = job.shape.queue .. '\0' .. job.shape.priority
    local tenant = job.tenant or ''
    local payer = account .. '\0' .. tenant
    local rank = math.max(floor_of(account, job.shape), balance(payer) or 0) + (shares[tenant] or SHARE)
    if rank == job.shape.run_at then rank = rank + 1 end
    write_balance(payer, rank)
    return rank
  end

  return rank_of
end
