-- Part of every verb: rows as texts and tables, the list of planned writes, and walks along an index.
--
-- A script is no transaction: what it has written stays when it fails. So every verb reads and checks all, collects the
-- writes, and writes them in one go (`write_all`). A row leaves all indexes before it changes and enters them again
-- afterwards, so that no change can forget one.
--
-- Two texts are never compared with < here: Lua compares by the server's locale. The server's own order is by bytes.

local band, bor, bnot = bit.band, bit.bor, bit.bnot
local pack, parse, match, sub = struct.pack, struct.unpack, string.match, string.sub

-- The next argument, from the first on.
local arguments_read = 0

local function argument()
  arguments_read = arguments_read + 1
  return ARGV[arguments_read]
end

-- ---- rows ------------------------------------------------------------------------------------------------------------
local function has(row, mark) return band(row[MARKS], mark) ~= 0 end

local function mark(row, which, on)
  row[MARKS] = on and bor(row[MARKS], which) or band(row[MARKS], bnot(which))
end

local function parse_row(id, text)
  local state, marks, version, attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at,
    keep_last, leased_by, at
  if band(parse('<H', text, 2), RAN) ~= 0 then
    state, marks, version, attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at,
      keep_last, leased_by, at = parse(RUN, text)
  else
    state, marks, version, at = parse(HEAD, text)
    attempt, failures, losses, stamp, accepted_stamp, leased_by = 0, 0, 0, NOBODY, NOBODY, ''
    leased_until, started_at, finished_at, prune_at, keep_last = NONE, NONE, NONE, NONE, NONE
  end
  local lease, scope, lane = parse(FIRST, text, at)
  return { state, marks, version, attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at,
    keep_last, leased_by, sub(text, at), id, lease, scope, lane, false }
end

-- The same for a text that another program may have written; nil if it is no row. Rows with the same text are checked once.
local flaws = {}

local function read_row(id, text)
  local flaw = flaws[text]
  if flaw == nil then
    flaw = flaw_in(text) or false
    flaws[text] = flaw
  end
  return not flaw and parse_row(id, text) or nil
end

local function pack_row(row)
  row[MARKS] = bor(row[MARKS], RAN)
  return pack(RUN, row[STATE], row[MARKS], row[VERSION], row[ATTEMPT], row[FAILURES], row[LOSSES], row[STAMP], row[ACCEPTED_STAMP],
    row[LEASED_UNTIL], row[STARTED_AT], row[FINISHED_AT], row[PRUNE_AT], row[KEEP_LAST], #row[LEASED_BY], row[LEASED_BY])
    .. row[REST_TEXT]
end

-- What seldom changes about a row, by name.
local function details(row)
  local found = row[DETAILS]
  if not found then
    local at
    found = {}
    found.lease, found.scope, found.lane, found.priority, found.waits, found.min_version, found.created_at, found.run_at,
      found.rank, found.expires_at, found.unique, found.names, at = parse(REST, row[REST_TEXT])
    found.more = sub(row[REST_TEXT], at)
    row[DETAILS] = found
  end
  return found
end

local function rest_of(found)
  return pack(REST, found.lease, found.scope, #found.lane, found.lane, found.priority, found.waits, found.min_version,
    found.created_at, found.run_at, found.rank, found.expires_at, #found.unique, found.unique, #found.names, found.names)
    .. found.more
end

-- What few rows have: gate, next_id, and hidden, keep and keep_last of a job that is cancelled with a parent.
local function more_of(row)
  local text = details(row).more
  if text == '' then return '', '', 0, NONE, NONE end
  return parse(MORE, text)
end

local function each_slice(list, size, work)
  for from = 1, #list, size do work(from, math.min(from + size - 1, #list)) end
end

-- The texts of rows, in the order of their ids. false: not on record.
local function row_texts(ids)
  local found = {}
  each_slice(ids, AT_ONCE, function(from, to)
    local texts = call('HMGET', rows, unpack(ids, from, to))
    for number = 1, #texts do found[from + number - 1] = texts[number] end
  end)
  return found
end

-- Rows by id, as tables; each is read once, so that all steps of a script see the same table. false: not on record, or it
-- cannot be read (then it is among the `unreadable_ids`, and will be set aside).
local rows_by_id, unreadable_ids = {}, {}

local function row_with_id(id, text)
  local row = rows_by_id[id]
  if row == nil then
    row = text and read_row(id, text) or false
    rows_by_id[id] = row
    if text and not row then
      unreadable_ids[id] = true
      mark_unreadable(id)
    end
  end
  return row
end

-- The ids of those that are to be set aside.
local function list_unreadable()
  local ids = {}
  for id in pairs(unreadable_ids) do ids[#ids + 1] = id end
  return ids
end

local function load_rows(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if rows_by_id[id] == nil then missing[#missing + 1] = id end
  end
  local texts = row_texts(missing)
  for number, id in ipairs(missing) do row_with_id(id, texts[number]) end
end

-- ---- what is to be written -------------------------------------------------------------------------------------------
local removals, additions = {}, {} -- members that leave a sorted set, scores and members that join one: by key
local field_removals, field_writes = {}, {} -- fields that leave a hash, fields and values that join one: by key
local count_changes = {} -- differences of counts, by lane and state
local slot_changes = {} -- differences of how many hold under a key of limits, by its field in `gates`: see indexes.lua
local ready_queues, any_ended = {}, false
local key_owners = {} -- owners of unique keys of rows, as this script has left them; false: nobody
local changed_lines, freed_keys = {}, {} -- lines of parked jobs that changed, keys of limits whose holds were given up: see limit_gates.lua

local function append(lists, key, first, second)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  local last = #list
  list[last + 1] = first
  if second then list[last + 2] = second end
end

local function save(row)
  local text = pack_row(row)
  append(field_writes, rows, row[ID], text)
  return text
end

local function run_in_slices(command, lists)
  for key, list in pairs(lists) do
    each_slice(list, 2 * AT_ONCE, function(from, to) call(command, key, unpack(list, from, to)) end)
  end
end

local function add_count(lane, state, difference)
  local states = count_changes[lane]
  if not states then
    states = {}
    count_changes[lane] = states
  end
  states[state] = (states[state] or 0) + difference
end

local function write_counts()
  local deeper = {}
  for lane, states in pairs(count_changes) do
    local queue = match(lane, '^[^%z]*')
    for state, difference in pairs(states) do
      add_to(counts, lane .. '\0' .. state, difference)
      if state <= READY then deeper[queue] = (deeper[queue] or 0) + difference end
    end
  end
  for queue, difference in pairs(deeper) do add_to(depths, queue, difference) end
  for slot, difference in pairs(slot_changes) do add_to(gates, slot, difference) end
end

-- Mark a parent whose edges must be resolved.
local function mark_unresolved(id) append(additions, unresolved, 0, id) end

-- The lanes whose members are about to leave or to join, each with its first member, or false.
local function first_members()
  local firsts, lane = {}, nil
  local function visit(list, from, step)
    for number = from, #list, step do
      local member = list[number]
      if not lane or sub(member, 1, #lane) ~= lane then
        lane = lane_of(member)
        if lane and firsts[lane] == nil then firsts[lane] = first_of_lane(lane) or false end
      end
    end
  end
  visit(removals[lanes] or {}, 1, 1)
  visit(additions[lanes] or {}, 2, 2)
  return firsts
end

-- Removals first: they are allowed when the memory is full, and once a script has written, it may write on.
local function write_all()
  local firsts = first_members()
  call('ZREM', leases, '')
  run_in_slices('ZREM', removals)
  run_in_slices('HDEL', field_removals)
  run_in_slices('HSET', field_writes)
  run_in_slices('ZADD', additions)
  for lane, first in pairs(firsts) do update_head(lane, first or nil) end
  write_counts()
  removals, additions, field_removals, field_writes, count_changes, slot_changes = {}, {}, {}, {}, {}, {}
end

-- The number of the format is gone if the server was emptied under a running app; the next job brings it back.
local function note_format() call('HSETNX', meta, 'format', FORMAT) end

-- Wake other processes. We may be forbidden to publish, and nothing depends on a signal.
local function publish_signals(origin)
  local names = {}
  for queue in pairs(ready_queues) do names[#names + 1] = queue end
  if origin == '' then return names end -- signals are switched off
  if #names > 0 then redis.pcall('PUBLISH', meta .. ':ready', origin .. table.concat(names, '\0')) end
  if any_ended then redis.pcall('PUBLISH', meta .. ':changed', origin) end
  return names
end

-- A set that is read in the order of its bytes must have one score, 0: another hides members from the server's search.
local function reset_scores(key)
  for _, range in ipairs({ { '-inf', '(0' }, { '(0', '+inf' } }) do
    for _, member in ipairs(call('ZRANGEBYSCORE', key, range[1], range[2], 'LIMIT', 0, AT_ONCE)) do call('ZADD', key, 0, member) end
  end
end

-- ---- walking along an index ------------------------------------------------------------------------------------------
-- Members of these sets are texts between NULs, then bytes. What follows a prefix up to its NUL, each once: one look per name,
-- however many members it has. At most so many names, if it is said.
local function below_prefix(prefix) return '(' .. prefix .. '\255' end

local function names_under(index, prefix, most)
  local found, from = {}, '[' .. prefix
  while true do
    local member = call('ZRANGEBYLEX', index, from, below_prefix(prefix), 'LIMIT', 0, 1)[1]
    if not member or #found == most then return found end
    local name = match(member, '^[^%z]*', #prefix + 1)
    found[#found + 1] = name
    from = '[' .. prefix .. name .. '\1'
  end
end

-- The versions of rows in the lanes of a kind, in an index.
local function versions_under(index, kind)
  local found, from = {}, '[' .. kind
  while true do
    local member = call('ZRANGEBYLEX', index, from, below_prefix(kind), 'LIMIT', 0, 1)[1]
    if not member then return found end
    local version = string.byte(member, #kind + 1) or 0
    found[#found + 1] = string.char(version)
    if version == 255 then return found end
    from = '[' .. kind .. string.char(version + 1)
  end
end

-- Each lane of a queue, of a kind and version.
local function each_lane(kind, version, queue, work)
  local base = kind .. version .. queue .. '\0'
  for _, task in ipairs(names_under(lanes, base)) do
    local prefix = base .. task .. '\0'
    for _, routing in ipairs(names_under(lanes, prefix)) do work(prefix .. routing .. '\0') end
  end
end

-- Make the heads of all lanes, where none are left.
local function make_heads()
  for _, kind in ipairs({ 'r', 's', 'p' }) do
    for _, version in ipairs(versions_under(lanes, kind)) do
      for _, queue in ipairs(names_under(lanes, kind .. version)) do each_lane(kind, version, queue, update_head) end
    end
  end
end

-- The members that begin with a text that ends in NUL, whatever bytes follow.
local function after_prefix(prefix) return '(' .. sub(prefix, 1, -2) .. '\1' end
