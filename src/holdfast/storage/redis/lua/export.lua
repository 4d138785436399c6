-- Whole jobs with their logs and the jobs that they wait for, the oldest first.
--
-- KEYS     see the prelude
-- ARGV     the position to begin behind: created_at ('-inf': from the first) and id, limit
-- returns  {records (see `tell`), ids, the log of each id or false, the ids that each waits for as one text}
local bottom, bottom_id, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Jobs of the very created_at where the last piece ended may stand before or behind it.
local function told_before(id, score)
  return bottom ~= '-inf' and score == tonumber(bottom) and not id_before(bottom_id, id)
end

local start = bottom == '-inf' and 0 or call('ZCOUNT', created, '-inf', '(' .. bottom)
local ids = {}
while #ids < limit do
  local listed = call('ZRANGE', created, start, start + AT_ONCE - 1, 'WITHSCORES')
  for number = 1, #listed, 2 do
    if #ids < limit and not told_before(listed[number], tonumber(listed[number + 1])) then ids[#ids + 1] = listed[number] end
  end
  if #listed < 2 * AT_ONCE then break end
  start = start + AT_ONCE
end
local records, lines = {}, {}
tell(records, ids)
slices(ids, AT_ONCE, function(from, to)
  local found = call('HMGET', logs, unpack(ids, from, to))
  for number = 1, #found do lines[from + number - 1] = found[number] end
end)
local waits_for = {}
for number, text in ipairs(texts_of(ids)) do
  local parents = {}
  if text and band(parse('<H', text, 2), WAITED) ~= 0 then
    local prefix = 'c' .. ids[number]
    for place, member in ipairs(call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 16))) do
      parents[place] = sub(member, 18)
    end
  end
  waits_for[number] = table.concat(parents)
end
return { records, ids, lines, waits_for }
