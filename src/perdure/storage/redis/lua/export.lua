-- Whole jobs with their logs, the jobs that they wait for and those that they are kept for, the oldest first.
--
-- KEYS     see constants.lua
-- ARGV     the position to begin behind: created_at ('-inf': from the first) and id, limit
-- returns  {records (see `add_records`), ids, the log of each id or false, the ids that each waits for as one text, those that each is
--          kept for}
local bottom, bottom_id, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Jobs of the very created_at where the last piece ended may stand before or behind it.
local function was_exported(id, score)
  return bottom ~= '-inf' and score == tonumber(bottom) and not id_before(bottom_id, id)
end

local start = bottom == '-inf' and 0 or call('ZCOUNT', created, '-inf', '(' .. bottom)
local ids = {}
while #ids < limit do
  local listed = call('ZRANGE', created, start, start + AT_ONCE - 1, 'WITHSCORES')
  for number = 1, #listed, 2 do
    if #ids < limit and not was_exported(listed[number], tonumber(listed[number + 1])) then ids[#ids + 1] = listed[number] end
  end
  if #listed < 2 * AT_ONCE then break end
  start = start + AT_ONCE
end
local records, lines = {}, {}
add_records(records, ids)
each_slice(ids, AT_ONCE, function(from, to)
  local found = call('HMGET', logs, unpack(ids, from, to))
  for number = 1, #found do lines[from + number - 1] = found[number] end
end)

-- The ids at the other end of a job's edges.
local function other_ends(kind, id)
  local prefix, found = kind .. id, {}
  for _, member in ipairs(call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 16))) do
    if #member == 33 then found[#found + 1] = sub(member, 18) end
  end
  return found
end

-- Those who waited for a job, wait for it no longer, and have not ended.
local function followers(id)
  local children, found = other_ends('k', id), {}
  for number, text in ipairs(row_texts(children)) do
    local child = children[number]
    local unfinished = text and (string.byte(text) or CANCELLED) <= RUNNING
    if unfinished and not call('ZSCORE', edges, 'c' .. child .. id) then found[#found + 1] = child end
  end
  return found
end

local waits_for, kept_for = {}, {}
for number, text in ipairs(row_texts(ids)) do
  local marks = text and #text > 2 and parse('<H', text, 2) or 0
  waits_for[number] = band(marks, WAITED) ~= 0 and table.concat(other_ends('c', ids[number])) or ''
  kept_for[number] = band(marks, FOLLOWED) ~= 0 and table.concat(followers(ids[number])) or ''
end
return { records, ids, lines, waits_for, kept_for }
