-- Store kept keys exactly as they are.
--
-- KEYS     see constants.lua
-- ARGV     for each: key, until when (eight bytes) and job
-- returns  nothing
for at = 1, #ARGV, 2 do
  local ends = parse('<d', ARGV[at + 1])
  append(field_writes, kept_keys, ARGV[at], ARGV[at + 1])
  if ends ~= NONE then append(additions, windows, ends, ARGV[at]) else append(removals, windows, ARGV[at]) end
end
write_all()
