-- Part of every verb that moves jobs: keeps the heads of lanes.
--
-- `heads` holds the first member of each lane once more: kind and version as in the lane, task NUL routing key NUL, place
-- (priority, rank, id), queue NUL, when it expires. A claim for every queue merges these heads by task and routing key, so it reads as
-- many of them as it takes jobs, however many queues there are. Lanes of a paused queue have no head.
local function lane_of(member) return string.match(member, '^..[^%z]*%z[^%z]*%z[^%z]*%z') end

-- The first member of a lane. A member of another length is not ours, and is removed.
local function first_of_lane(lane)
  while true do
    local member = call('ZRANGE', lanes, '[' .. lane, '(' .. string.sub(lane, 1, -2) .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member or #member - #lane == 28 or #member - #lane == 36 then return member end
    call('ZREM', lanes, member)
  end
end

local function head_of_lane(lane, member)
  local kind, queue, names = string.match(lane, '^(..)([^%z]*)%z(.*)$')
  return kind .. names .. string.sub(member, #lane + 1, #lane + 28) .. queue .. '\0' .. string.sub(member, #lane + 29), queue
end

-- Write the head of a lane whose first member was `before` (nil: none) when it has changed.
local function update_head(lane, before)
  local after = first_of_lane(lane)
  if after == before then return end
  if before then call('ZREM', heads, (head_of_lane(lane, before))) end
  if not after then return end
  local head, queue = head_of_lane(lane, after)
  if call('SISMEMBER', paused, queue) == 0 then call('ZADD', heads, 0, head) end
end
