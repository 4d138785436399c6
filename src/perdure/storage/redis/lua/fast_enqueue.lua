-- The fast path of enqueue, before the rest of the script creates its functions. It stores new jobs of one shape that are ready at
-- once, without key, parents, limits, tenant or time to expire, in queues without settings. For any other job it writes nothing,
-- and the general path below runs.
local function try_fast_enqueue(now, origin)
  local options, priority, waits, min_version, scope, lease, time, expires, _, lane, more = struct.unpack(SHAPE, ARGV[4])
  local length = #ARGV[5] / 2
  if options ~= 0 or waits > 0 or scope > 0 or time ~= 0 or expires ~= NONE or more ~= '' then return nil end
  if length > AT_ONCE or call('HLEN', bounds) > 0 then return nil end
  local ids, seen = {}, {}
  for number = 1, length do
    local id = ARGV[4 + 2 * number]
    if seen[id] then return nil end
    ids[number], seen[id] = id, true
  end
  for _, text in ipairs(call('HMGET', rows, unpack(ids))) do
    if text then return nil end
  end

  local text = struct.pack(HEAD, READY, 0, 1)
    .. struct.pack(REST, lease, scope, #lane, lane, priority, waits, min_version, now, now, now, expires, 0, '', 0, '')
  local lane_prefix = 'r' .. string.char(min_version) .. lane .. '\0'
  local head = lane_prefix .. struct.pack('>I4I8', 2147483647 - priority, now + 2251799813685248) -- see lane_head, ordered
  local instant, texts, births, places = string.format('%.0f', now), {}, {}, {}
  for number = 1, length do
    local id, at = ids[number], 2 * number
    texts[at - 1], texts[at] = id, text
    births[at - 1], births[at] = instant, id
    places[at - 1], places[at] = '0', head .. id
  end
  local first = first_of_lane(lane_prefix)
  -- the bodies first, because a full memory refuses them while nothing is written
  call('HSET', jobs, unpack(ARGV, 6, 5 + 2 * length))
  call('HSETNX', meta, 'format', FORMAT)
  call('HSET', rows, unpack(texts))
  call('ZADD', created, unpack(births))
  call('ZADD', lanes, unpack(places))
  update_head(lane_prefix, first)
  local queue = string.match(lane, '^[^%z]*')
  add_to(counts, lane .. '\0' .. READY, length)
  add_to(depths, queue, length)
  if origin ~= '' then redis.pcall('PUBLISH', meta .. ':ready', origin .. queue) end
  return { {}, { queue }, 0 }
end

if ARGV[3] == '1' then
  local answer = try_fast_enqueue(time_of_call(ARGV[1]), ARGV[2])
  if answer then return answer end
end
