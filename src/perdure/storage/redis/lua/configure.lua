-- Write a queue's settings, or whether it is paused.
--
-- KEYS     see constants.lua
-- ARGV     origin, queue, then 'settings', text, bound ('' or max_depth policy drop_below shares), or 'pause', or 'resume'
-- returns  nothing
local origin, queue, what = ARGV[1], ARGV[2], ARGV[3]

-- Add or remove the heads of all lanes of the queue.
local function write_heads()
  local function write(lane)
    if what == 'resume' then return update_head(lane) end
    local first = first_of_lane(lane)
    if first then call('ZREM', heads, (head_of_lane(lane, first))) end
  end
  for _, kind in ipairs({ 'r', 's', 'p' }) do
    for _, version in ipairs(versions_under(lanes, kind)) do each_lane(kind, version, queue, write) end
  end
end

-- The same for the heads of its lines under limits.
local function write_heads_of_lines()
  for _, kind in ipairs({ 'or', 'os' }) do
    for _, version in ipairs(versions_under(limits, kind)) do
      local prefix = kind .. version .. queue .. '\0'
      local from = '[' .. prefix
      while true do
        local found = call('ZRANGEBYLEX', limits, from, after_prefix(prefix), 'LIMIT', 0, AT_ONCE)
        for _, head in ipairs(found) do
          if what == 'resume' then
            call('ZADD', limits, 0, (head_over_queues(head)))
          else
            call('ZREM', limits, (head_over_queues(head)))
          end
        end
        if #found < AT_ONCE then break end
        from = '(' .. found[#found]
      end
    end
  end
end

if what == 'settings' then
  call('HSET', queues, queue, ARGV[4])
  if ARGV[5] == '' then call('HDEL', bounds, queue) else call('HSET', bounds, queue, ARGV[5]) end
else
  call('HDEL', queues, '')
  call('HSETNX', queues, queue, '')
  if what == 'pause' then call('SADD', paused, queue) else call('SREM', paused, queue) end
  write_heads()
  write_heads_of_lines()
  if what == 'resume' then
    ready_queues[queue] = true
    publish_signals(origin)
  end
end
