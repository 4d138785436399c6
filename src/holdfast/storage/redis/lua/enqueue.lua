-- Put jobs on record, all or none.
--
-- KEYS     see the prelude
-- ARGV     now ('': the server's clock), origin of signals,
--          number of shapes, the shapes (what jobs have in common: see SHAPE),
--          the shape of each job as two bytes each,
--          then for each job: id, body and, if its shape says so, unique key and names
-- returns  {} or, for each job that was not simply stored: its position, 'owner', the owner's id, or its position,
--          'dropped', ''; or {'full', queue, max_depth, 'waits' or 'rejects'} when nothing was stored

-- options, priority, waits, min_version, unique scope, lease, delay or instant, expires, window, lane
local SHAPE = '<Bi4I4BBddddHc0'
local AT, EXTRAS = 1, 2 -- options: the time is an instant; unique key and names follow
local ANY, WINDOW = 3, 4 -- scopes whose keys are kept apart from the rows

local now, origin, shapes = clock(ARGV[1]), ARGV[2], {}
local shape_count = tonumber(ARGV[3])

local function shape_of(text)
  local shape = {}
  shape.options, shape.priority, shape.waits, shape.min_version, shape.scope, shape.lease, shape.time, shape.expires,
    shape.window, shape.lane = parse(SHAPE, text)
  shape.run_at = band(shape.options, AT) ~= 0 and shape.time or now + shape.time
  shape.state = shape.waits > 0 and BLOCKED or shape.run_at > now and SCHEDULED or READY
  shape.queue = string.match(shape.lane, '^[^%z]*')
  shape.expires_at = shape.expires == NONE and NONE or now + shape.expires
  shape.rest = {
    lease = shape.lease, scope = shape.scope, lane = shape.lane, priority = shape.priority, waits = shape.waits,
    min_version = shape.min_version, created_at = now, run_at = shape.run_at, rank = shape.run_at,
    expires_at = shape.expires_at, unique = '', names = '',
  }
  return shape
end

-- A job that was never claimed has a short row; without key and names it is the same for all jobs of a shape.
local function fresh_text(shape, marks) return pack(HEAD, shape.state, marks, 1) .. rest_of(shape.rest) end

for number = 1, shape_count do
  local shape = shape_of(ARGV[3 + number])
  shape.text = fresh_text(shape, 0)
  shape.lane_head = lane_head(shape.lane, false, shape.min_version, shape.priority, shape.run_at)
  shape.lane_tail = shape.expires_at == NONE and '' or pack('<d', shape.expires_at)
  shapes[number] = shape
end

-- ---- what is asked for -----------------------------------------------------------------------------------------------
local listed, asked, keyed = ARGV[4 + shape_count], {}, false
local at = 5 + shape_count
local ids = {}
for number = 1, #listed / 2 do
  local low, high = string.byte(listed, 2 * number - 1, 2 * number)
  local job = { id = ARGV[at], body = ARGV[at + 1], shape = shapes[high * 256 + low + 1] }
  at = at + 2
  if band(job.shape.options, EXTRAS) ~= 0 then
    job.unique, job.names = ARGV[at], ARGV[at + 1]
    at = at + 2
    keyed = keyed or job.shape.scope > 0
  end
  asked[number] = job
  ids[number] = job.id
end

-- ---- what is on record -----------------------------------------------------------------------------------------------
local on_record = {}
slices(ids, AT_ONCE, function(from, to)
  for number, text in ipairs(call('HMGET', rows, unpack(ids, from, to))) do
    if text then on_record[ids[from + number - 1]] = true end
  end
end)

local function apart(job) return job.shape.scope >= ANY end

local owners = { [true] = {}, [false] = {} } -- by whether keys are kept apart from the rows

local function owner_of(job)
  local known_owners = owners[apart(job)]
  local owner = known_owners[job.unique]
  if owner ~= nil then return owner end
  local key = apart(job) and kept_keys or held_keys
  owner = call('HGET', key, job.unique)
  if owner and apart(job) then
    local ends, id = parse('<dc16', owner)
    owner = (ends == NONE or ends > now) and id
  end
  known_owners[job.unique] = owner
  return owner
end

local limits = {} -- of bounded queues
local added = {}
if call('HLEN', bounds) > 0 then
  for _, shape in ipairs(shapes) do
    local bound = call('HGET', bounds, shape.queue)
    if bound and not limits[shape.queue] then
      local most, policy, drop_below = string.match(bound, '^(%S+) (%S+) (%S+)$')
      limits[shape.queue] = { most = tonumber(most), policy = policy, drop_below = tonumber(drop_below) }
      added[shape.queue] = tonumber(call('HGET', depths, shape.queue) or 0)
    end
  end
end

-- ---- what becomes of each, in the order of the list ------------------------------------------------------------------
local answer, fresh = {}, {}

local function except(number, what, id)
  local last = #answer
  answer[last + 1], answer[last + 2], answer[last + 3] = number, what, id
end

for number, job in ipairs(asked) do
  local shape = job.shape
  if not on_record[job.id] then
    local owner = shape.scope > 0 and owner_of(job)
    local limit = limits[shape.queue]
    if owner then
      if owner ~= job.id then except(number, 'owner', owner) end
    elseif limit and added[shape.queue] >= limit.most then
      local droppable = limit.policy == 'drop' and (not limit.drop_below or shape.priority < limit.drop_below)
      if not droppable then
        return { 'full', shape.queue, limit.most, limit.policy == 'reject' and 'rejects' or 'waits' }
      end
      except(number, 'dropped', '')
    else
      on_record[job.id] = true
      if limit then added[shape.queue] = added[shape.queue] + 1 end
      if shape.scope > 0 then owners[apart(job)][job.unique] = job.id end
      fresh[#fresh + 1] = job
    end
  end
end
if #fresh == 0 then return answer end

-- ---- writing: the bodies first, because a full memory refuses them while nothing is written --------------------------------
local bodies, texts, births = {}, {}, {}

local function store_keyed(job)
  local shape, marks = job.shape, 0
  shape.rest.unique, shape.rest.names = job.unique, job.names
  if shape.scope >= ANY then
    local ends = shape.scope == WINDOW and now + shape.window or NONE
    note(set, kept_keys, job.unique, pack('<dc16', ends, job.id))
    if ends ~= NONE then note(came, windows, ends, job.unique) else note(gone, windows, job.unique) end
  elseif shape.scope > 0 then
    marks = HOLDS_KEY
    note(set, held_keys, job.unique, job.id)
  end
  for name in string.gmatch(job.names, '([^%z]+)%z') do
    note(came, named, 0, name .. '\0' .. ordered(now) .. job.id)
  end
  return fresh_text(shape, marks)
end

for number, job in ipairs(fresh) do
  local shape, last = job.shape, 2 * number
  bodies[last - 1], bodies[last] = job.id, job.body
  texts[last - 1], texts[last] = job.id, job.unique and store_keyed(job) or shape.text
  births[last - 1], births[last] = now, job.id
  if shape.state == READY then
    note(came, lanes, 0, shape.lane_head .. job.id .. shape.lane_tail)
  elseif shape.state == SCHEDULED then
    note(came, schedule, shape.run_at, job.id)
  else
    note(came, aside, 0, in_aside(shape.state, shape.lane, shape.run_at, job.id))
  end
  if shape.expires_at ~= NONE then note(came, expiring, shape.expires_at, job.id) end
  shape.stored = (shape.stored or 0) + 1
end
for _, shape in ipairs(shapes) do
  if shape.stored then
    tally(shape.lane, shape.state, shape.stored)
    if shape.state == READY then woken[shape.queue] = true end
  end
end
variadic('HSET', { [jobs] = bodies })
variadic('HSET', { [rows] = texts })
variadic('ZADD', { [created] = births })
note_format()
flush()
publish(origin)
return answer
