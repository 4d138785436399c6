-- Remove ended jobs that are no longer kept, and window keys that are over.
--
-- KEYS     see the prelude
-- ARGV     now, limit
-- returns  how many jobs
local now, limit = clock(ARGV[1]), tonumber(ARGV[2])
local leaving, doomed = {}, {}

local function doom(id)
  if not doomed[id] and #leaving < limit then
    doomed[id] = true
    leaving[#leaving + 1] = id
  end
end

-- ---- past their time: held ones stay, and do not use up the limit -----------------------------------------------------------
local skipped = 0
while #leaving < limit do
  local ids = call('ZRANGEBYSCORE', prunable, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load(ids)
  for _, id in ipairs(ids) do
    local row = known[id]
    if not row then
      note(gone, prunable, id) -- it is not what the index says
    elseif not has(row, HELD) then
      doom(id)
    end
  end
end

-- ---- too many of their task --------------------------------------------------------------------------------------------
-- The jobs of a group that keep the same number stand together, the oldest first. A job goes when the group has that many
-- newer ones; from the first that stays on, all younger ones stay.
local function newer(prefix, kinds, tail)
  local found = 0
  for _, kind in ipairs(kinds) do
    local under = prefix .. kind .. '\0'
    found = found + call('ZLEXCOUNT', ended, '(' .. under .. tail, beyond(under))
  end
  return found
end

local function too_many(prefix, kinds, kept)
  local under, from = prefix .. kept .. '\0', nil
  while #leaving < limit do
    local member = call('ZRANGEBYLEX', ended, from or '[' .. under, beyond(under), 'LIMIT', 0, 1)[1]
    if not member then return end
    local tail = string.sub(member, #under + 1)
    if newer(prefix, kinds, tail) < tonumber(kept) then return end
    local id = string.sub(tail, 9)
    load({ id })
    if not known[id] then
      note(gone, ended, member)
    elseif not has(known[id], HELD) then
      doom(id)
    end
    from = '(' .. member
  end
end

for _, task in ipairs(names_under(ended, '')) do
  for _, group in ipairs({ 'd', 'o' }) do
    local prefix = task .. '\0' .. group .. '\0'
    local kinds = names_under(ended, prefix)
    for _, kept in ipairs(kinds) do
      if kept ~= '-' then too_many(prefix, kinds, kept) end
    end
  end
end

-- ---- writing -----------------------------------------------------------------------------------------------------------
for _, id in ipairs(leaving) do
  local row = known[id]
  lift(row)
  note(gone, created, id)
  local found = details(row)
  for name in string.gmatch(found.names, '([^%z]+)%z') do
    note(gone, named, name .. '\0' .. ordered(found.created_at) .. id)
  end
  for _, key in ipairs({ rows, jobs }) do note(unset, key, id) end
  if has(row, HAS_OUTCOME) then note(unset, outcomes, id) end
  if has(row, HAS_ERRORS) then note(unset, errors, id) end
  if has(row, HAS_PROGRESS) then note(unset, progress, id) end
  if has(row, HAS_LOG) then note(unset, logs, id) end
end
local over = call('ZRANGEBYSCORE', windows, '-inf', now, 'LIMIT', 0, 20 * AT_ONCE)
for _, key in ipairs(over) do
  note(gone, windows, key)
  note(unset, kept_keys, key)
end
flush()
return #leaving
