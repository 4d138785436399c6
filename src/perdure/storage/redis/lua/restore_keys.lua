-- Put kept keys on record exactly as they are.
--
-- KEYS     see basics.lua
-- ARGV     for each: key, until when (eight bytes) and job
-- returns  nothing
for at = 1, #ARGV, 2 do
  local ends = parse('<d', ARGV[at + 1])
  note(set, kept_keys, ARGV[at], ARGV[at + 1])
  if ends ~= NONE then note(came, windows, ends, ARGV[at]) else note(gone, windows, ARGV[at]) end
end
flush()
