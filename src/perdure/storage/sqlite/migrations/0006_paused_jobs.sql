-- held_up: 1 after a claim along lines met the job in a paused queue; such a claim does not read it again until the queue is resumed.
ALTER TABLE perdure_jobs ADD COLUMN held_up INTEGER;
CREATE INDEX perdure_jobs_held_up ON perdure_jobs (queue) WHERE held_up = 1;
DROP INDEX IF EXISTS perdure_jobs_line;
-- Open gates in lines of task and routing key over all queues: a claim for every queue reads the best of each line.
CREATE INDEX perdure_gates_line ON perdure_gates (task, routing_key, priority DESC, rank, head) WHERE closed_by = '';
-- Gates of paused queues are closed by 'paused'.
UPDATE perdure_gates SET closed_by = 'paused'
WHERE closed_by = '' AND queue IN (SELECT name FROM perdure_queues WHERE paused = 1);
