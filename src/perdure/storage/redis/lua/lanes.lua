-- Part of exchange: the jobs that a want would get, best first: {member of the lanes, its lane} each.
local best_of, lanes_of, is_paused, open_source, head_of, keys_of, sift_down
local taken = {} -- members of lanes that this script has claimed already

do
  local paused_queues

  function is_paused(queue)
    if not paused_queues then
      paused_queues = {}
      for _, name in ipairs(call('SMEMBERS', paused)) do paused_queues[name] = true end
    end
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
    if taken[member] then return false end
    return #member - #lane == 28 or parse('<d', member, #member - 7) > now
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
        if source.any or fits(member, source.lane, source.now) then return member end
      end
      local index = source.index
      local more = call('ZRANGEBYLEX', index, source.from, beyond(source.lane), 'LIMIT', 0, source.size)
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

  -- The best jobs of some lanes: {member, lane} each.
  local function best(found, limit, now)
    local chosen, heap = {}, {}
    if #found == 1 then
      local source = open_source(lanes, found[1], limit, now)
      while #chosen < limit do
        local member = head_of(source)
        if not member then break end
        chosen[#chosen + 1] = { member, source.lane }
      end
      return chosen
    end
    for _, lane in ipairs(found) do
      local source = open_source(lanes, lane, math.max(2, math.ceil(limit / #found)), now)
      local member = head_of(source)
      if member then heap[#heap + 1] = keys_of(source, member) end
    end
    for number = math.floor(#heap / 2), 1, -1 do sift_down(heap, number) end
    while #heap > 0 and #chosen < limit do
      local source = heap[1]
      chosen[#chosen + 1] = { source.member, source.lane }
      local member = head_of(source)
      if member then
        keys_of(source, member)
      else
        heap[1] = heap[#heap]
        heap[#heap] = nil
      end
      sift_down(heap, 1)
    end
    return chosen
  end

  -- `kind`: r, s or p, as lanes begin.
  function best_of(want, kind, limit, now) return best(lanes_of(want, lanes, kind), limit, now) end
end
