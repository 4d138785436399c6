-- Part of exchange: the jobs that a want would get, best first: {member of the lanes, its lane} each.
local FEW = 16 -- lanes that are merged without their heads
local best_of, lanes_of, groups_of, is_paused, open_source, head_of, keys_of, sift_down, push
local claimed_members = {} -- members of lanes that this script has claimed already

do
  local paused_queues = {}

  function is_paused(queue)
    if paused_queues[queue] == nil then paused_queues[queue] = call('SISMEMBER', paused, queue) == 1 end
    return paused_queues[queue]
  end

  -- The lanes of a want in an index: by name where it names them, else those that there are.
  function lanes_of(want, index, kind)
    local found = {}
    for version = 1, want.newest do
      local base = kind .. string.char(version)
      for _, queue in ipairs(want.queues or names_under(index, base)) do
        if not is_paused(queue) then
          local within = base .. queue .. '\0'
          for _, task in ipairs(want.tasks or names_under(index, within)) do
            local prefix = within .. task .. '\0'
            for _, routing in ipairs(want.routing and { want.routing } or names_under(index, prefix)) do
              found[#found + 1] = prefix .. routing .. '\0'
            end
          end
        end
      end
    end
    return found
  end

  local function fits(member, lane, now)
    if claimed_members[member] then return false end
    return #member - #lane == 28 or parse('<d', member, #member - 7) > now
  end

  -- Whether a member is as long as one of its kind is: a place, when it expires if it does, and the gate behind a head. Another
  -- one is nobody's, and is removed.
  local function is_whole_member(source, member)
    local length = #member - #source.lane
    if source.index == heads then
      local behind = match(member, '^[^%z]*%z()', #source.lane + 29)
      if behind and (#member - behind == -1 or #member - behind == 7) then return true end
    elseif source.over_queues then
      local behind = match(member, '^[^%z]*%z()', #source.lane + 29)
      if behind and #member - behind == 15 then return true end
    elseif source.any then
      if length == 44 then return true end
    elseif length == 28 or length == 36 then
      return true
    end
    append(removals, source.index, member)
    return false
  end

  -- A lane that is read head by head.
  function open_source(index, lane, size, now)
    return { index = index, lane = lane, size = size, now = now, at = 0, members = {}, from = '[' .. lane }
  end

  function head_of(source)
    while source.members do
      while source.at < #source.members do
        source.at = source.at + 1
        local member = source.members[source.at]
        if is_whole_member(source, member) then
          source.first = source.first or member
          if source.any or fits(member, source.lane, source.now) then return member end
        end
      end
      local index = source.index
      local more = call('ZRANGEBYLEX', index, source.from, after_prefix(source.lane), 'LIMIT', 0, source.size)
      if #more == 0 then
        source.members = nil
      else
        source.members, source.at, source.from = more, 0, '(' .. more[#more]
        source.size = math.min(2 * source.size, AT_ONCE) -- whoever comes again met jobs that do not fit, or takes many
      end
    end
  end

  function keys_of(source, member)
    source.member = member
    source.priority, source.rank_high, source.rank_low, source.a, source.b, source.c, source.d =
      parse('>I4I4I4I4I4I4I4', member, #source.lane + 1)
    return source
  end

  local ORDER = { 'priority', 'rank_high', 'rank_low', 'a', 'b', 'c', 'd' }

  local function before(one, other)
    for _, key in ipairs(ORDER) do
      if one[key] ~= other[key] then return one[key] < other[key] end
    end
    return false
  end

  function sift_down(heap, at)
    local size = #heap
    while true do
      local least, left = at, 2 * at
      if left <= size and before(heap[left], heap[least]) then least = left end
      if left < size and before(heap[left + 1], heap[least]) then least = left + 1 end
      if least == at then return end
      heap[at], heap[least] = heap[least], heap[at]
      at = least
    end
  end

  function push(heap, source)
    local member = head_of(source)
    if not member then return end
    local at = #heap + 1
    heap[at] = keys_of(source, member)
    while at > 1 do
      at = math.floor(at / 2)
      sift_down(heap, at)
    end
  end

  -- What a want of every queue finds in an index of heads: {kind and version, task NUL routing key NUL} of each group of heads.
  function groups_of(want, index, kind)
    local found = {}
    for version = 1, want.newest do
      local base = kind .. string.char(version)
      for _, task in ipairs(want.tasks or names_under(index, base)) do
        local prefix = base .. task .. '\0'
        for _, routing in ipairs(want.routing and { want.routing } or names_under(index, prefix)) do
          found[#found + 1] = prefix .. routing .. '\0'
        end
      end
    end
    return found
  end

  -- The lane that a head belongs to. `group`: what the head begins with.
  local function lane_behind(head, group)
    local queue = match(head, '^([^%z]*)%z', #group + 29)
    return queue and sub(group, 1, 2) .. queue .. '\0' .. sub(group, 3)
  end

  -- All lanes of a want of every queue, where there are few.
  local function few_lanes(groups)
    local found, opened = {}, {}
    for _, group in ipairs(groups) do
      for _, head in ipairs(call('ZRANGEBYLEX', heads, '[' .. group, after_prefix(group))) do
        local lane = lane_behind(head, group)
        if lane and not opened[lane] then found[#found + 1] = lane end
        if lane then opened[lane] = true else append(removals, heads, head) end
      end
    end
    return found
  end

  -- Open the lane behind a head. A head that is not the first of its lane is corrected.
  local function open_lane(heap, head, group, opened, now)
    local lane = lane_behind(head, group)
    if not opened[lane] then
      opened[lane] = open_source(lanes, lane, 2, now)
      push(heap, opened[lane])
    end
    local first = opened[lane].first
    local right = first and head_of_lane(lane, first)
    if right == head then return end
    append(removals, heads, head)
    if right then append(additions, heads, 0, right) end
  end

  -- The best jobs of sources that stand in a heap: {member, lane} each. A source of heads opens the lane behind each of them.
  local function merge(heap, limit, now)
    local chosen, opened = {}, {}
    while #heap > 0 and #chosen < limit do
      local source = heap[1]
      local reached = source.member
      local member = head_of(source)
      if member then
        keys_of(source, member)
      else
        heap[1] = heap[#heap]
        heap[#heap] = nil
      end
      sift_down(heap, 1)
      if source.any then
        open_lane(heap, reached, source.lane, opened, now)
      else
        chosen[#chosen + 1] = { reached, source.lane }
      end
    end
    return chosen
  end

  -- The best jobs of some lanes.
  local function best_of_lanes(found, limit, now)
    local heap, size = {}, #found == 1 and limit or math.max(2, math.ceil(limit / #found))
    for _, lane in ipairs(found) do push(heap, open_source(lanes, lane, size, now)) end
    return merge(heap, limit, now)
  end

  -- The best jobs of many lanes, by their heads.
  local function best_of_heads(groups, limit, now)
    local heap = {}
    for _, group in ipairs(groups) do
      local source = open_source(heads, group, math.max(2, math.min(limit, AT_ONCE)), now)
      source.any = true
      push(heap, source)
    end
    return merge(heap, limit, now)
  end

  -- `kind`: r, s or p, as lanes begin.
  function best_of(want, kind, limit, now)
    if want.queues then return best_of_lanes(lanes_of(want, lanes, kind), limit, now) end
    local groups = groups_of(want, heads, kind)
    if call('ZCARD', heads) <= FEW then return best_of_lanes(few_lanes(groups), limit, now) end
    return best_of_heads(groups, limit, now)
  end
end
