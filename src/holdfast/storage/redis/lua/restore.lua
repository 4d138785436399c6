-- Put jobs on record exactly as they are, in place of what is known under their ids.
--
-- KEYS     see the prelude
-- ARGV     origin, then for each job: id, row, body, outcome, errors, progress, log ('' for none)
-- returns  {} or {id, owner} when another job holds a job's unique key and nothing was written
local TEXTS = { outcomes, errors, progress, logs }
local WIDTH = 3 + #TEXTS

local origin = ARGV[1]
local ids, listed = {}, {}
for at = 2, #ARGV, WIDTH do
  ids[#ids + 1] = ARGV[at]
  listed[ARGV[at]] = true
end
local texts = texts_of(ids)

local arriving = {}
for number, id in ipairs(ids) do
  local row = read(id, ARGV[2 + WIDTH * (number - 1) + 1])
  arriving[number] = row
  if has(row, HOLDS_KEY) then
    local owner = call('HGET', held_keys, details(row).unique)
    if owner and not listed[owner] then return { id, owner } end
  end
end

local function each_name(row, work)
  local found = details(row)
  for name in string.gmatch(found.names, '([^%z]+)%z') do
    work(name .. '\0' .. ordered(found.created_at) .. row[ID])
  end
end

local function leave(row)
  lift(row)
  if has(row, HOLDS_KEY) then note(unset, held_keys, details(row).unique) end
  each_name(row, function(member) note(gone, named, member) end)
end

local given = NONE -- the latest moment at which one of these leases was given

local function arrive(row, at)
  place(row)
  if has(row, HOLDS_KEY) then note(set, held_keys, details(row).unique, row[ID]) end
  each_name(row, function(member) note(came, named, 0, member) end)
  note(came, created, details(row).created_at, row[ID])
  note(set, rows, row[ID], ARGV[at + 1])
  note(set, jobs, row[ID], ARGV[at + 2])
  for number, key in ipairs(TEXTS) do
    local text = ARGV[at + 2 + number]
    note(unset, key, row[ID])
    if text ~= '' then note(set, key, row[ID], text) end
  end
  if has(row, HELD) then given = math.max(given, row[LEASED_UNTIL] - row[LEASE]) end
  ended_some = ended_some or row[STATE] > RUNNING
end

for number, id in ipairs(ids) do
  if texts[number] then leave(read(id, texts[number])) end
end
for number, row in ipairs(arriving) do arrive(row, 2 + WIDTH * (number - 1)) end
if given ~= NONE then leases_given(given) end
flush()
note_format()
publish(origin)
return {}
