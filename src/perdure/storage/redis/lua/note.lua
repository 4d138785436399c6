-- Write progress and log lines for holds that are still valid.
--
-- KEYS     see constants.lua
-- ARGV     origin, lines kept, then for each note: the hold (see HOLD), progress ('=' and the text, or ''), number of lines, lines
-- returns  {an answer per note (see indexes.lua) as one text, whether progress was written}
local LINE = '<I4c0'
local most = tonumber(ARGV[2])

local notes, ids = {}, {}
local at = 3
while at <= #ARGV do
  local told = { hold = { parse(HOLD, ARGV[at]) }, progress = ARGV[at + 1], lines = {} }
  local length = tonumber(ARGV[at + 2])
  for number = 1, length do told.lines[number] = ARGV[at + 2 + number] end
  at = at + 3 + length
  notes[#notes + 1] = told
  ids[#ids + 1] = told.hold[1]
end
load_rows(ids)

local function lines_of(text)
  local lines, from = {}, 1
  while from <= #text do
    local fine, line, behind = pcall(parse, LINE, text, from)
    if not fine then return lines end -- what follows cannot be read
    lines[#lines + 1], from = line, behind
  end
  return lines
end

local kept = {} -- log lines by id, as they will be

local function log(row, added)
  local lines = kept[row[ID]] or (has(row, HAS_LOG) and lines_of(call('HGET', logs, row[ID]) or '')) or {}
  for _, line in ipairs(added) do lines[#lines + 1] = line end
  kept[row[ID]] = lines
  mark(row, HAS_LOG, true)
end

local answers, changed_rows = {}, {}
for number, told in ipairs(notes) do
  local row = rows_by_id[told.hold[1]]
  local answer = check_hold(row, told.hold[2], told.hold[3])
  answers[number] = answer
  if answer == 0 then
    if told.progress ~= '' then
      append(field_writes, progress, row[ID], string.sub(told.progress, 2))
      mark(row, HAS_PROGRESS, true)
      changed_rows[row[ID]] = row
      any_ended = true
    end
    if #told.lines > 0 then
      log(row, told.lines)
      changed_rows[row[ID]] = row
    end
  end
end
for id, lines in pairs(kept) do
  local texts = {}
  for number = math.max(1, #lines - most + 1), #lines do texts[#texts + 1] = pack(LINE, #lines[number], lines[number]) end
  append(field_writes, logs, id, table.concat(texts))
end
for _, row in pairs(changed_rows) do save(row) end
if next(changed_rows) then write_all() end
publish_signals(ARGV[1])
return { table.concat(answers), any_ended and 1 or 0 }
