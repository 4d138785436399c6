-- Write kv entries exactly as they are, in place of those under the same names.
--
-- KEYS     see constants.lua
-- ARGV     for each: kind NUL name, text (see kv.lua)
-- returns  nothing
for at = 1, #ARGV, 2 do
  local field, text = ARGV[at], ARGV[at + 1]
  local before = call('HGET', kv, field)
  local row = before and parse_entry(before)
  if row then move_entry(field, row, leave) end
  move_entry(field, parse_entry(text), join)
  append(field_writes, kv, field, text)
end
write_all()
note_format()
