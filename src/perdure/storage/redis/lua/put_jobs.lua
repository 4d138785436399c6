-- Part of every verb that stores jobs: reads new jobs from the arguments, finds duplicates and full queues, and stores the rest.
-- Only scripts that need it call it, so that the others do not create its functions.
local function job_writer(now)
  local AT, EXTRAS, TENANT, AFTER, WHEN_FINISHED = 1, 2, 4, 8, 16 -- options: an instant; what follows each job; run_when
  local ANY, WINDOW = 3, 4 -- scopes whose keys are kept apart from the rows

  local planned = {} -- jobs that this script puts on record
  local on_record, queue_settings, any_settings = {}, {}, nil
  local kept_owners = {}
  local follow, rank_of -- made when they are needed: see parents.lua, fair_ranks.lua

  -- ---- what is asked for ---------------------------------------------------------------------------------------------
  local function shape_of(text)
    local shape = {}
    shape.options, shape.priority, shape.waits, shape.min_version, shape.scope, shape.lease, shape.time, shape.expires,
      shape.window, shape.lane, shape.more = parse(SHAPE, text)
    shape.run_at = band(shape.options, AT) ~= 0 and shape.time or now + shape.time
    shape.state = shape.waits > 0 and BLOCKED or shape.run_at > now and SCHEDULED or READY
    shape.queue = match(shape.lane, '^[^%z]*')
    shape.expires_at = shape.expires == NONE and NONE or now + shape.expires
    shape.rest = {
      lease = shape.lease, scope = shape.scope, lane = shape.lane, priority = shape.priority, waits = shape.waits,
      min_version = shape.min_version, created_at = now, run_at = shape.run_at, rank = shape.run_at,
      expires_at = shape.expires_at, unique = '', names = '', more = shape.more,
    }
    shape.marks = 0
    if shape.more ~= '' then
      if parse('<H', shape.more) > 0 then shape.marks = LIMITED end
      if band(shape.options, AFTER) ~= 0 then shape.marks = shape.marks + WAITED end
    end
    if band(shape.options, WHEN_FINISHED) ~= 0 then shape.marks = shape.marks + FINISHED end
    return shape
  end

  -- A job that was never claimed has a short row; without key and names it is the same for all jobs of a shape.
  local function fresh_text(shape, state, marks) return pack(HEAD, state, marks, 1) .. rest_of(shape.rest) end

  -- Read jobs from the next arguments: number of shapes, the shapes, the shape of each job as two bytes each, then
  -- for each job: id, body and, if its shape has them, unique key and names, the tenant who pays, parents (see parents.lua).
  local function read_jobs()
    local at, shapes = arguments_read + 1, {}
    local shape_count = tonumber(ARGV[at])
    for number = 1, shape_count do
      local shape = shape_of(ARGV[at + number])
      shape.parks = shape.state == READY and shape.marks == LIMITED
      shape.text = fresh_text(shape, shape.state, shape.parks and LIMITED + PARKED or 0)
      shape.lane_head = lane_head(shape.lane, false, shape.min_version, shape.priority, shape.run_at)
      shape.lane_suffix = shape.expires_at == NONE and '' or pack('<d', shape.expires_at)
      if shape.parks then
        local row = parse_row('', shape.text)
        shape.line, shape.aside_member = line_of(row), aside_member(READY, shape.lane, shape.run_at, '')
        shape.line_member = 'p' .. shape.line .. sort_key(shape.priority, shape.run_at)
      end
      shapes[number] = shape
    end
    local listed, asked = ARGV[at + shape_count + 1], {}
    at = at + shape_count + 2
    for number = 1, #listed / 2 do
      local low, high = string.byte(listed, 2 * number - 1, 2 * number)
      local job = { id = ARGV[at], body = ARGV[at + 1], shape = shapes[high * 256 + low + 1] }
      local options = job.shape.options
      at = at + 2
      if options > AT then
        if band(options, EXTRAS) ~= 0 then
          job.unique, job.names = ARGV[at], ARGV[at + 1]
          at = at + 2
        end
        if band(options, TENANT) ~= 0 then
          job.tenant = ARGV[at]
          at = at + 1
        end
        if band(options, AFTER) ~= 0 then
          job.link = ARGV[at]
          at = at + 1
        end
      end
      asked[number] = job
    end
    arguments_read = at - 1
    return asked
  end

  -- ---- what is on record ---------------------------------------------------------------------------------------------
  local function note_stored(ids)
    each_slice(ids, AT_ONCE, function(from, to)
      for number, text in ipairs(call('HMGET', rows, unpack(ids, from, to))) do
        if text then on_record[ids[from + number - 1]] = true end
      end
    end)
  end

  local function kept_owner(unique)
    local owner = kept_owners[unique]
    if owner == nil then
      owner = call('HGET', kept_keys, unique)
      if owner then
        local fine, ends, id = pcall(parse, '<dc16', owner)
        if not fine then set_value_aside('kept_keys', kept_keys, unique, owner, now) end
        owner = fine and (ends == NONE or ends > now) and id
      end
      kept_owners[unique] = owner
    end
    return owner
  end

  local function owner_of(job)
    if job.shape.scope >= ANY then return kept_owner(job.unique) end
    return holder_of(job.unique)
  end

  -- What a job of each tenant costs. What cannot be read costs all of them the same.
  local function shares_in(text)
    local fine, shares = pcall(cmsgpack.unpack, text)
    if not fine or type(shares) ~= 'table' then return {} end
    for tenant, cost in pairs(shares) do
      if type(cost) ~= 'number' or not is_whole(cost) or cost < 1 then shares[tenant] = nil end
    end
    return shares
  end

  -- What is configured for a queue: how many it holds and its policy, and the shares of tenants if it is fair. Or false.
  local function find_settings(queue)
    if any_settings == nil then any_settings = call('HLEN', bounds) > 0 end
    if not any_settings then return false end
    local found = queue_settings[queue]
    if found == nil then
      local text = call('HGET', bounds, queue)
      found = text and {}
      if found then
        local most, policy, drop_below, shares = match(text, '^(%S+) (%S+) (%S+) ?(.*)$')
        found.most, found.policy, found.drop_below = tonumber(most or nil), policy, tonumber(drop_below or nil)
        found.shares = shares and shares ~= '' and shares_in(shares)
        found.depth = found.most and (number_in(depths, queue) or 0)
      end
      queue_settings[queue] = found
    end
    return found
  end

  local function settings_of(shape)
    if shape.settings == nil then shape.settings = find_settings(shape.queue) end
    return shape.settings
  end

  -- ---- what becomes of each, in the order of the list ----------------------------------------------------------------
  local function droppable(shape, settings)
    return settings.policy == 'drop' and (not settings.drop_below or shape.priority < settings.drop_below)
  end

  -- Gives why nothing can be stored, or nil; for each job that is not simply stored: its position, 'owner' and the owner's
  -- id, or its position, 'dropped', ''; and the jobs that are to be stored.
  local function plan(asked, bounded)
    local answer, fresh, owner_instead, ids, followers = {}, {}, {}, {}, false
    for number, job in ipairs(asked) do ids[number] = job.id end
    note_stored(ids)
    for number, job in ipairs(asked) do
      local shape = job.shape
      if not on_record[job.id] then
        local owner = shape.scope > 0 and owner_of(job)
        local settings = bounded and settings_of(shape)
        local last = #answer
        if owner then
          if owner ~= job.id then
            answer[last + 1], answer[last + 2], answer[last + 3] = number, 'owner', owner
            owner_instead[job.id] = owner
          end
        elseif settings and settings.most and settings.depth >= settings.most then
          if not droppable(shape, settings) then
            return { 'full', shape.queue, settings.most, settings.policy == 'reject' and 'rejects' or 'waits' }
          end
          answer[last + 1], answer[last + 2], answer[last + 3] = number, 'dropped', ''
        else
          on_record[job.id], planned[job.id] = true, true
          if settings and settings.most then settings.depth = settings.depth + 1 end
          if shape.scope >= ANY then
            kept_owners[job.unique] = job.id
          elseif shape.scope > 0 then
            key_owners[job.unique] = job.id
          end
          fresh[#fresh + 1] = job
          followers = followers or job.link
        end
      end
    end
    if followers then
      follow = follow or parent_links(planned)
      local orphan = follow.find_parents(fresh, owner_instead)
      if orphan then return orphan end
    end
    return nil, answer, fresh
  end

  -- ---- writing -------------------------------------------------------------------------------------------------------
  local function write_key(job)
    local shape, marks = job.shape, 0
    shape.rest.unique, shape.rest.names = job.unique, job.names
    if shape.scope >= ANY then
      local ends = shape.scope == WINDOW and now + shape.window or NONE
      append(field_writes, kept_keys, job.unique, pack('<dc16', ends, job.id))
      if ends ~= NONE then append(additions, windows, ends, job.unique) else append(removals, windows, job.unique) end
    elseif shape.scope > 0 then
      marks = HOLDS_KEY
      append(field_writes, held_keys, job.unique, job.id)
    end
    for name in string.gmatch(job.names, '([^%z]+)%z') do
      append(additions, named, 0, name .. '\0' .. sortable(now) .. job.id)
    end
    return marks
  end

  -- A job with limits, parents or a share. Gives its row.
  local function store_special(job, marks)
    local shape = job.shape
    local rest, state = shape.rest, shape.state
    rest.rank, rest.waits = job.rank or shape.run_at, job.waits or shape.waits
    marks = marks + shape.marks
    if job.rank then marks = marks + FAIR end
    if state == READY and band(marks, LIMITED) ~= 0 then marks = marks + PARKED end
    local text = fresh_text(shape, state, marks)
    enter_indexes(parse_row(job.id, text))
    if job.parents then follow.write_edges(job) end
    return text
  end

  local function store_plain(job)
    local shape = job.shape
    if shape.parks then
      append(additions, aside, 0, shape.aside_member .. job.id)
      append(additions, limits, 0, shape.line_member .. job.id .. shape.lane_suffix)
      changed_lines[shape.line] = true
    elseif shape.state == READY then
      append(additions, lanes, 0, shape.lane_head .. job.id .. shape.lane_suffix)
    elseif shape.state == SCHEDULED then
      append(additions, schedule, shape.run_at, job.id)
    else
      append(additions, aside, 0, aside_member(shape.state, shape.lane, shape.run_at, job.id))
    end
    if shape.expires_at ~= NONE then append(additions, expiring, shape.expires_at, job.id) end
    shape.stored = (shape.stored or 0) + 1
  end

  -- Note what is to be written for these jobs.
  local function store(fresh)
    local bodies, texts, births, shapes = field_writes[jobs] or {}, field_writes[rows] or {}, additions[created] or {}, {}
    local body_at, text_at, birth_at = #bodies, #texts, #births
    field_writes[jobs], field_writes[rows], additions[created] = bodies, texts, births
    for number, job in ipairs(fresh) do
      local shape, marks, text, last = job.shape, 0, nil, 2 * number
      local settings = settings_of(shape)
      if settings and settings.shares then
        rank_of = rank_of or fair_ranks(now)
        job.rank = rank_of(job, settings.shares)
      end
      if job.unique then marks = write_key(job) end
      if (shape.marks ~= 0 and not shape.parks) or job.rank then
        text = store_special(job, marks)
      else
        if shape.parks then marks = marks + LIMITED + PARKED end
        text = job.unique and fresh_text(shape, shape.state, marks) or shape.text
        store_plain(job)
        shapes[shape] = true
      end
      bodies[body_at + last - 1], bodies[body_at + last] = job.id, job.body
      texts[text_at + last - 1], texts[text_at + last] = job.id, text
      births[birth_at + last - 1], births[birth_at + last] = now, job.id
    end
    for shape in pairs(shapes) do
      add_count(shape.lane, shape.state, shape.stored)
      shape.stored = 0
      if shape.state ~= BLOCKED then ready_queues[shape.queue] = true end
    end
  end

  -- Gives {'orphan', job, parent} for jobs that are put on record with changes, before any of these is written.
  local function refuse_orphans(lists)
    follow = follow or parent_links(planned)
    return follow.refuse_orphans(lists)
  end

  return { read = read_jobs, plan = plan, store = store, refuse_orphans = refuse_orphans }
end
