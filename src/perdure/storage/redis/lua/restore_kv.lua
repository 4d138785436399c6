-- Put texts on the shelf exactly as they are, in place of what is there.
--
-- KEYS     see basics.lua
-- ARGV     for each: kind NUL name, text (see shelving.lua)
-- returns  nothing
for at = 1, #ARGV, 2 do
  local field, text = ARGV[at], ARGV[at + 1]
  local before = call('HGET', shelf, field)
  local row = before and on_shelf(before)
  if row then move_on_shelf(field, row, leave) end
  move_on_shelf(field, on_shelf(text), join)
  note(set, shelf, field, text)
end
flush()
note_format()
