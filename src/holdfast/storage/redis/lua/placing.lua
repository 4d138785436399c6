-- Part of every verb that puts jobs on record: what becomes of new jobs, and where they are put.
-- Made anew by each script that needs it, so that the others do not pay for it.
local function placing(now)
  -- options, priority, waits, min_version, unique scope, lease, delay or instant, expires, window, lane, more (see MORE)
  local SHAPE = '<Bi4I4BBddddHc0Hc0'
  local AT, EXTRAS, TENANT, AFTER, WHEN_FINISHED = 1, 2, 4, 8, 16 -- options: an instant; what follows each job; run_when
  local ANY, WINDOW = 3, 4 -- scopes whose keys are kept apart from the rows
  local LINK = '<I4I4' -- the place of `after` in the body (first byte, first byte behind); then the parents' ids

  local SUCCEEDED, SKIPPED = 5, 6

  local planned = {} -- jobs that this script puts on record
  local on_record, queue_settings, any_settings = {}, {}, nil
  local kept_owners, balances, floors = {}, {}, {}

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

  -- The jobs that the next arguments tell of: number of shapes, the shapes, the shape of each job as two bytes each, then
  -- for each job: id, body and, if its shape says so, unique key and names, the tenant who pays, parents (see LINK).
  local function read_jobs()
    local at, shapes = arguments_read + 1, {}
    local shape_count = tonumber(ARGV[at])
    for number = 1, shape_count do
      local shape = shape_of(ARGV[at + number])
      shape.parks = shape.state == READY and shape.marks == LIMITED
      shape.text = fresh_text(shape, shape.state, shape.parks and LIMITED + PARKED or 0)
      shape.lane_head = lane_head(shape.lane, false, shape.min_version, shape.priority, shape.run_at)
      shape.lane_tail = shape.expires_at == NONE and '' or pack('<d', shape.expires_at)
      if shape.parks then
        local row = read('', shape.text)
        shape.line, shape.in_aside = line_of(row), in_aside(READY, shape.lane, shape.run_at, '')
        shape.in_line = 'p' .. shape.line .. place_in(shape.priority, shape.run_at)
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
  local function look_up(ids)
    slices(ids, AT_ONCE, function(from, to)
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
        local ends, id = parse('<dc16', owner)
        owner = (ends == NONE or ends > now) and id
      end
      kept_owners[unique] = owner
    end
    return owner
  end

  local function held_owner(unique)
    local owner = owned[unique]
    if owner == nil then
      owner = call('HGET', held_keys, unique)
      owned[unique] = owner
    end
    return owner
  end

  local function owner_of(job)
    if job.shape.scope >= ANY then return kept_owner(job.unique) end
    return held_owner(job.unique)
  end

  -- What is configured for a queue: how many it holds and its policy, and the shares of tenants if it is fair. Or false.
  local function looked_up(queue)
    if any_settings == nil then any_settings = call('HLEN', bounds) > 0 end
    if not any_settings then return false end
    local found = queue_settings[queue]
    if found == nil then
      local text = call('HGET', bounds, queue)
      found = text and {}
      if found then
        local most, policy, drop_below, shares = match(text, '^(%S+) (%S+) (%S+) ?(.*)$')
        found.most, found.policy, found.drop_below = tonumber(most), policy, tonumber(drop_below)
        found.shares = shares ~= '' and cmsgpack.unpack(shares)
        found.depth = found.most and tonumber(call('HGET', depths, queue) or 0)
      end
      queue_settings[queue] = found
    end
    return found
  end

  local function settings_of(shape)
    if shape.settings == nil then shape.settings = looked_up(shape.queue) end
    return shape.settings
  end

  -- ---- what becomes of each, in the order of the list ----------------------------------------------------------------
  local function parents_of(job)
    local found = {}
    for at = 9, #job.link, 16 do found[#found + 1] = sub(job.link, at, at + 15) end
    return found
  end

  local function uuid(id)
    local digits = string.gsub(id, '.', function(character) return string.format('%02x', string.byte(character)) end)
    return table.concat({ sub(digits, 1, 8), sub(digits, 9, 12), sub(digits, 13, 16), sub(digits, 17, 20), sub(digits, 21) }, '-')
  end

  -- A text as MessagePack writes it.
  local function packed(text)
    if #text < 32 then return string.char(160 + #text) .. text end
    if #text < 256 then return '\217' .. string.char(#text) .. text end
    if #text < 65536 then return '\218' .. pack('>H', #text) .. text end
    return '\219' .. pack('>I4', #text) .. text
  end

  -- Let a job wait for those who stand for parents that were duplicates.
  local function lead(job, stands_for)
    local led, seen, differs = {}, {}, false
    for _, parent in ipairs(job.parents) do
      local leader = stands_for[parent] or parent
      differs = differs or leader ~= parent or seen[leader]
      if not seen[leader] then
        seen[leader] = true
        led[#led + 1] = leader
      end
    end
    if not differs then return end
    local texts, from, behind = {}, parse(LINK, job.link)
    for number, parent in ipairs(led) do texts[number] = '"' .. uuid(parent) .. '"' end
    local after = packed('[' .. table.concat(texts, ',') .. ']')
    job.body = sub(job.body, 1, from) .. after .. sub(job.body, behind + 1)
    job.parents, job.waits = led, #led
  end

  -- Those of these that are on record, without those that were deleted before they were done.
  local function followable(ids)
    local found = {}
    for number, text in ipairs(texts_of(ids)) do
      local row = text and read(ids[number], text)
      local done = row and (row[STATE] == SUCCEEDED or row[STATE] == SKIPPED)
      found[ids[number]] = row and (done or not has(row, HIDDEN))
    end
    return found
  end

  -- Somebody who would wait for a job that is neither on record nor new.
  local function orphan_among(asked, new)
    local older = {}
    for _, job in ipairs(asked) do
      for _, parent in ipairs(job.parents or {}) do
        if not planned[parent] and not new[parent] then older[#older + 1] = parent end
      end
    end
    local found = followable(older)
    for _, job in ipairs(asked) do
      for _, parent in ipairs(job.parents or {}) do
        if found[parent] == false then return { 'orphan', job.id, parent } end
      end
    end
  end

  local function droppable(shape, settings)
    return settings.policy == 'drop' and (not settings.drop_below or shape.priority < settings.drop_below)
  end

  -- Gives why nothing can be stored, or nil; for each job that is not simply stored: its position, 'owner' and the owner's
  -- id, or its position, 'dropped', ''; and the jobs that are to be stored.
  local function plan(asked, bounded)
    local answer, fresh, stands_for, ids, followers = {}, {}, {}, {}, false
    for number, job in ipairs(asked) do ids[number] = job.id end
    look_up(ids)
    for number, job in ipairs(asked) do
      local shape = job.shape
      if not on_record[job.id] then
        local owner = shape.scope > 0 and owner_of(job)
        local settings = bounded and settings_of(shape)
        local last = #answer
        if owner then
          if owner ~= job.id then
            answer[last + 1], answer[last + 2], answer[last + 3] = number, 'owner', owner
            stands_for[job.id] = owner
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
            owned[job.unique] = job.id
          end
          fresh[#fresh + 1] = job
          followers = followers or job.link
        end
      end
    end
    if followers then
      for _, job in ipairs(fresh) do
        if job.link then
          job.parents = parents_of(job)
          lead(job, stands_for)
        end
      end
      local orphan = orphan_among(fresh, {})
      if orphan then return orphan end
    end
    return nil, answer, fresh
  end

  -- The same for jobs that are put on record with changes, before any of these is written.
  local function refuse_orphans(lists)
    local all, new = {}, {}
    for _, asked in pairs(lists) do
      for _, job in ipairs(asked) do
        all[#all + 1] = job
        new[job.id] = true
        if job.link then job.parents = parents_of(job) end
      end
    end
    return orphan_among(all, new)
  end

  -- ---- shares of a fair queue ----------------------------------------------------------------------------------------
  local function balance(account)
    local found = balances[account]
    if found == nil then
      found = tonumber(call('HGET', accounts, account) or nil) or false
      balances[account] = found
    end
    return found
  end

  local function write_balance(account, rank)
    balances[account] = rank
    note(set, accounts, account, string.format('%.0f', rank))
  end

  -- The smallest rank that is ready in a queue and priority: the least of the heads of its lanes, of so many that it does
  -- not take long.
  local function head_rank(queue, priority)
    local least, left, place = nil, 256, pack('>I4', 2147483647 - priority)
    local function look(lane)
      local member = call('ZRANGEBYLEX', lanes, '[' .. lane .. place, below(lane .. place), 'LIMIT', 0, 1)[1]
      local rank = member and parse('>I8', member, #lane + 5) - 2251799813685248
      if rank and (not least or rank < least) then least = rank end
      left = left - 1
      return left > 0
    end
    for _, version in ipairs(versions_under('r')) do
      for _, task in ipairs(names_under(lanes, 'r' .. version .. queue .. '\0')) do
        local prefix = 'r' .. version .. queue .. '\0' .. task .. '\0'
        for _, routing in ipairs(names_under(lanes, prefix, left)) do
          if not look(prefix .. routing .. '\0') then return least end
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

  -- ---- writing -------------------------------------------------------------------------------------------------------
  local function write_key(job)
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
    return marks
  end

  local function write_edges(job)
    local kind = band(job.shape.marks, FINISHED) ~= 0 and 'f' or 's'
    for _, parent in ipairs(job.parents) do
      note(came, edges, 0, 'o' .. parent .. kind .. job.id)
      note(came, edges, 0, 'c' .. job.id .. parent)
      unsettle(parent)
    end
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
    place(read(job.id, text))
    if job.parents then write_edges(job) end
    return text
  end

  local function store_plain(job)
    local shape = job.shape
    if shape.parks then
      note(came, aside, 0, shape.in_aside .. job.id)
      note(came, limits, 0, shape.in_line .. job.id .. shape.lane_tail)
      touched[shape.line] = true
    elseif shape.state == READY then
      note(came, lanes, 0, shape.lane_head .. job.id .. shape.lane_tail)
    elseif shape.state == SCHEDULED then
      note(came, schedule, shape.run_at, job.id)
    else
      note(came, aside, 0, in_aside(shape.state, shape.lane, shape.run_at, job.id))
    end
    if shape.expires_at ~= NONE then note(came, expiring, shape.expires_at, job.id) end
    shape.stored = (shape.stored or 0) + 1
  end

  -- Note what is to be written for these jobs.
  local function store(fresh)
    local bodies, texts, births, shapes = set[jobs] or {}, set[rows] or {}, came[created] or {}, {}
    local body_at, text_at, birth_at = #bodies, #texts, #births
    set[jobs], set[rows], came[created] = bodies, texts, births
    for number, job in ipairs(fresh) do
      local shape, marks, text, last = job.shape, 0, nil, 2 * number
      local settings = settings_of(shape)
      if settings and settings.shares then job.rank = rank_of(job, settings.shares) end
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
      tally(shape.lane, shape.state, shape.stored)
      shape.stored = 0
      if shape.state == READY then woken[shape.queue] = true end
    end
  end

  return { read = read_jobs, plan = plan, store = store, refuse_orphans = refuse_orphans }
end
