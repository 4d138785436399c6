-- Store jobs, all or none, and resolve their edges.
--
-- KEYS     see constants.lua
-- ARGV     now ('': the server's clock), origin of signals, the jobs (see read_jobs in put_jobs.lua)
-- returns  {for each job that was not simply stored: its position, 'owner', the owner's id, or its position, 'dropped', '';
--          queues that have ready jobs now, whether a job ended}; or, when nothing was stored, {'full', queue, max_depth,
--          'waits' or 'rejects'} or {'orphan', job, parent}
local now, origin = time_of_call(argument()), argument()
local writer = job_writer(now)
local refused, answer, fresh = writer.plan(writer.read(), true)
if refused then return refused end
if #fresh == 0 then return { answer, {}, 0 } end

-- The bodies first, because a full memory refuses them while nothing is written.
writer.store(fresh)
run_in_slices('HSET', { [jobs] = field_writes[jobs] })
field_writes[jobs] = nil
note_format()
local follows = additions[unresolved]
write_all()
if next(changed_lines) then update_gates(now) end
if follows then resolve(now, AT_ONCE) end
return { answer, publish_signals(origin), any_ended and 1 or 0 }
