-- Put jobs on record, all or none, and settle what follows from their edges.
--
-- KEYS     see basics.lua
-- ARGV     now ('': the server's clock), origin of signals, the jobs (see read_jobs in placing.lua)
-- returns  {for each job that was not simply stored: its position, 'owner', the owner's id, or its position, 'dropped', '';
--          queues that have ready jobs now, whether a job ended}; or, when nothing was stored, {'full', queue, max_depth,
--          'waits' or 'rejects'} or {'orphan', job, parent}
local now, origin = clock(argument()), argument()
local placer = placing(now)
local refused, answer, fresh = placer.plan(placer.read(), true)
if refused then return refused end
if #fresh == 0 then return { answer, {}, 0 } end

-- The bodies first, because a full memory refuses them while nothing is written.
placer.store(fresh)
variadic('HSET', { [jobs] = set[jobs] })
set[jobs] = nil
note_format()
local follows = came[unresolved]
flush()
if next(touched) then keep_gates(now) end
if follows then settle(now, AT_ONCE) end
return { answer, publish(origin), ended_some and 1 or 0 }
