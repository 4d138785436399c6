-- A piece of a listing, newest first: walks along created_at and gives the rows that may fit.
--
-- KEYS     see constants.lua
-- ARGV     'created' or 'dead': which index, the position to begin below: created_at ('+inf': from the top) and id,
--          the lowest created_at, rows to look at, rows to give, states as eight digits 0 or 1, queue, task ('': any)
-- returns  {'more' or 'end', created_at and id of the last row looked at, records (see `add_records`), id and created_at in the index of those
--          that cannot be read}
local index = ARGV[1] == 'dead' and dead or created
local top, top_id, floor = ARGV[2], ARGV[3], tonumber(ARGV[4])
local budget, most, states, queue, task = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]

-- Jobs of the very created_at where the last page ended may stand before or behind it.
local function was_shown(id, score)
  return top ~= '+inf' and score == tonumber(top) and (top_id == '' or not id_before(id, top_id))
end

local function may_fit(id, text)
  local row = read_row(id, text)
  if not row then return true end -- whoever asked is shown that it cannot be read
  if has(row, HIDDEN) or sub(states, row[STATE], row[STATE]) == '0' then return false end
  if queue == '' and task == '' then return true end
  local lane = row[LANE]
  return (queue == '' or queue == queue_of(lane)) and (task == '' or task == task_of(lane))
end

local start = top == '+inf' and 0 or call('ZCOUNT', index, '(' .. top, '+inf')
local looked, found, births, more, last_score, last_id = 0, {}, {}, true, '', ''
while more and looked < budget and #found < most do
  local listed = call('ZREVRANGE', index, start, start + AT_ONCE - 1, 'WITHSCORES')
  local ids, scores, over = {}, {}, #listed < 2 * AT_ONCE
  for number = 1, #listed, 2 do
    local score = tonumber(listed[number + 1])
    if score < floor then
      over = true
      break
    end
    if not was_shown(listed[number], score) then
      ids[#ids + 1], scores[#scores + 1] = listed[number], listed[number + 1]
    end
  end
  local texts = #ids > 0 and call('HMGET', rows, unpack(ids)) or {}
  for number, text in ipairs(texts) do
    if #found >= most then
      over = false
      break
    end
    looked, last_score, last_id = looked + 1, scores[number], ids[number]
    if text and may_fit(ids[number], text) then
      found[#found + 1] = ids[number]
      if flaws[text] then
        births[#births + 1] = ids[number]
        births[#births + 1] = scores[number]
      end
    end
  end
  start, more = start + AT_ONCE, not over
end
local records = {}
add_records(records, found)
return { more and 'more' or 'end', last_score, last_id, records, births }
