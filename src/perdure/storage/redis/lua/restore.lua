-- Store jobs exactly as they are, in place of those with the same ids.
--
-- KEYS     see constants.lua
-- ARGV     now, origin, how many accounts hold at least so much, then account and rank of each, then for each job: id, row, body, the ids that it waits for and those that it is kept for, each as one
--          text, outcome, errors, progress, log ('' for none)
-- returns  {} or {id, owner} when another job holds a job's unique key and nothing was written
local TEXTS = { outcomes, errors, progress, logs }
local FIRST_JOB, WIDTH = 4 + 2 * ARGV[3], 5 + #TEXTS

local now, origin = time_of_call(ARGV[1]), ARGV[2]
local ids, listed = {}, {}
for at = FIRST_JOB, #ARGV, WIDTH do
  ids[#ids + 1] = ARGV[at]
  listed[ARGV[at]] = true
end
local texts = row_texts(ids)

local arriving = {}
for number, id in ipairs(ids) do
  local row = parse_row(id, ARGV[FIRST_JOB + WIDTH * (number - 1) + 1])
  arriving[number] = row
  if has(row, HOLDS_KEY) then
    local owner = call('HGET', held_keys, details(row).unique)
    if owner and not listed[owner] then return { id, owner } end
  end
end

local function each_name(row, work)
  local found = details(row)
  for name in string.gmatch(found.names, '([^%z]+)%z') do
    work(name .. '\0' .. sortable(found.created_at) .. row[ID])
  end
end

local function each_id(text, work)
  for from = 1, #text, 16 do work(sub(text, from, from + 15)) end
end

local function kind_of(row) return has(row, FINISHED) and 'f' or 's' end

local function remove_old(row)
  leave_indexes(row)
  if has(row, HOLDS_KEY) then append(field_removals, held_keys, details(row).unique) end
  each_name(row, function(member) append(removals, named, member) end)
  if has(row, WAITED) then close_edges(row[ID], kind_of(row), true) end
end

local given = NONE -- the latest moment at which one of these leases was given

local function insert_new(row, at)
  enter_indexes(row)
  if has(row, HOLDS_KEY) then append(field_writes, held_keys, details(row).unique, row[ID]) end
  each_name(row, function(member) append(additions, named, 0, member) end)
  append(additions, created, details(row).created_at, row[ID])
  append(field_writes, rows, row[ID], ARGV[at + 1])
  append(field_writes, jobs, row[ID], ARGV[at + 2])
  for number, key in ipairs(TEXTS) do
    local text = ARGV[at + 4 + number]
    append(field_removals, key, row[ID])
    if text ~= '' then append(field_writes, key, row[ID], text) end
  end
  each_id(ARGV[at + 3], function(parent)
    append(additions, edges, 0, 'o' .. parent .. kind_of(row) .. row[ID])
    append(additions, edges, 0, 'c' .. row[ID] .. parent)
  end)
  each_id(ARGV[at + 4], function(child) append(additions, edges, 0, 'k' .. row[ID] .. child) end)
  if has(row, HELD) then given = math.max(given, row[LEASED_UNTIL] - row[LEASE]) end
  any_ended = any_ended or row[STATE] > RUNNING
end

for number, id in ipairs(ids) do
  if texts[number] then remove_old(read_row(id, texts[number])) end
end
for number, row in ipairs(arriving) do insert_new(row, FIRST_JOB + WIDTH * (number - 1)) end
if given ~= NONE then note_lease_time(given) end
for at = 4, FIRST_JOB - 1, 2 do
  local rank = call('HGET', accounts, ARGV[at])
  if not rank or tonumber(rank) < tonumber(ARGV[at + 1]) then append(field_writes, accounts, ARGV[at], ARGV[at + 1]) end
end
write_all()
if next(changed_lines) or next(freed_keys) then update_gates(now) end
note_format()
publish_signals(origin)
return {}
