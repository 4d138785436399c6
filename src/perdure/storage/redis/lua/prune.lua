-- Remove ended jobs whose retention is over, and window keys that are over. Within ten minutes after its end a job is only
-- hidden, so that a repeated enqueue finds it.
--
-- KEYS     see constants.lua
-- ARGV     now, limit
-- returns  how many jobs
local now, limit = time_of_call(ARGV[1]), tonumber(ARGV[2])
local HIDDEN_FOR = 600000000 -- see core/retention.py
local chosen_ids, is_chosen = {}, {}

local function choose(id)
  if not is_chosen[id] and #chosen_ids < limit then
    is_chosen[id] = true
    chosen_ids[#chosen_ids + 1] = id
  end
end

-- ---- who is needed -------------------------------------------------------------------------------------------------------
-- A job stays while a follower waits for it, or has waited for it and not ended. Edges of followers that have ended are removed on
-- the way, so many in a call.
local LATER = 60000000 -- microseconds until those are looked at again that are met in vain in great numbers
local edges_left, some_unresolved = 20 * AT_ONCE, call('EXISTS', unresolved) == 1

local function followers_ended(id)
  local prefix = 'k' .. id
  while edges_left > 0 do
    local members = call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 16), 'LIMIT', 0, AT_ONCE)
    if #members == 0 then return true end
    local children = {}
    for number, member in ipairs(members) do children[number] = sub(member, 18) end
    for number, text in ipairs(row_texts(children)) do
      if text and (string.byte(text) or CANCELLED) <= RUNNING then return false end
      call('ZREM', edges, members[number])
      edges_left = edges_left - 1
    end
  end
  return false
end

local function is_followed(id, row)
  if not has(row, FOLLOWED) and not (some_unresolved and call('ZSCORE', unresolved, id)) then return false end
  local prefix = 'o' .. id
  if call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 17), 'LIMIT', 0, 1)[1] then return true end
  return not followers_ended(id)
end

local function must_stay(id) return has(rows_by_id[id], HELD) or is_followed(id, rows_by_id[id]) end

-- ---- past their time: those who are kept do not use up the limit ---------------------------------------------------------
local skipped, skipped_in_row = 0, 0
while #chosen_ids < limit do
  local ids = call('ZRANGEBYSCORE', prunable, '-inf', now, 'LIMIT', skipped, AT_ONCE)
  if #ids == 0 then break end
  skipped = skipped + #ids
  load_rows(ids)
  for _, id in ipairs(ids) do
    if not rows_by_id[id] or rows_by_id[id][PRUNE_AT] == NONE or rows_by_id[id][STATE] <= RUNNING then
      append(removals, prunable, id) -- it is not what the index says
    elseif rows_by_id[id][PRUNE_AT] > now then
      append(additions, prunable, rows_by_id[id][PRUNE_AT], id)
    elseif #chosen_ids < limit then
      if not must_stay(id) then
        choose(id)
      elseif not has(rows_by_id[id], HELD) then
        skipped_in_row = skipped_in_row + 1
        if skipped_in_row > AT_ONCE then append(additions, prunable, now + LATER, id) end
      end
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
    found = found + call('ZLEXCOUNT', ended, '(' .. under .. tail, after_prefix(under))
  end
  return found
end

local function too_many(prefix, kinds, most)
  local under, from, visited_lanes = prefix .. most .. '\0', nil, 0
  while #chosen_ids < limit and visited_lanes < limit + 10 * AT_ONCE do
    local member = call('ZRANGEBYLEX', ended, from or '[' .. under, after_prefix(under), 'LIMIT', 0, 1)[1]
    if not member then return end
    local tail = string.sub(member, #under + 1)
    if newer(prefix, kinds, tail) < (tonumber(most) or 0) then return end
    local id = string.sub(tail, 9)
    load_rows({ id })
    if not rows_by_id[id] or rows_by_id[id][STATE] <= RUNNING or ended_member(rows_by_id[id]) ~= member then
      append(removals, ended, member) -- it is not what the index says
    elseif not must_stay(id) then
      choose(id)
    end
    from = '(' .. member
    visited_lanes = visited_lanes + 1
  end
end

for _, task in ipairs(names_under(ended, '')) do
  for _, group in ipairs({ 'd', 'o' }) do
    local prefix = task .. '\0' .. group .. '\0'
    local kinds = names_under(ended, prefix)
    for _, most in ipairs(kinds) do
      if most ~= '-' then too_many(prefix, kinds, most) end
    end
  end
end

-- ---- writing -----------------------------------------------------------------------------------------------------------
local texts_of_jobs = call('ZRANGEBYLEX', kv_index, '[j', '(k', 'LIMIT', 0, 1)[1]

local function forget_edges(id, row)
  if has(row, WAITED) then close_edges(id, has(row, FINISHED) and 'f' or 's', false) end
  append(removals, unresolved, id)
end

local function hide(row)
  leave_indexes(row)
  row[VERSION] = row[VERSION] + 1
  row[PRUNE_AT], row[KEEP_LAST] = row[FINISHED_AT] + HIDDEN_FOR, NONE
  mark(row, HIDDEN, true)
  reinsert(row)
end

local function remove(id, row)
  leave_indexes(row)
  append(removals, created, id)
  local found = details(row)
  for name in string.gmatch(found.names, '([^%z]+)%z') do
    append(removals, named, name .. '\0' .. sortable(found.created_at) .. id)
  end
  for _, key in ipairs({ rows, jobs }) do append(field_removals, key, id) end
  if has(row, HAS_OUTCOME) then append(field_removals, outcomes, id) end
  if has(row, HAS_ERRORS) then append(field_removals, errors, id) end
  if has(row, HAS_PROGRESS) then append(field_removals, progress, id) end
  if has(row, HAS_LOG) then append(field_removals, logs, id) end
  if has(row, WAITED) or has(row, FOLLOWED) then forget_edges(id, row) end
  if texts_of_jobs then remove_entries(id) end
end

for _, id in ipairs(chosen_ids) do
  local row = rows_by_id[id]
  if has(row, HIDDEN) or row[FINISHED_AT] + HIDDEN_FOR <= now then
    remove(id, row)
  else
    hide(row)
  end
end
local over = call('ZRANGEBYSCORE', windows, '-inf', now, 'LIMIT', 0, 20 * AT_ONCE)
for _, key in ipairs(over) do
  append(removals, windows, key)
  append(field_removals, kept_keys, key)
end
write_all()
return #chosen_ids
