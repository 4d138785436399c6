-- Lanes by hashes. The claim index held the names of queue, task and routing key: three texts to be compared at every step
-- down the tree, and behind them columns whose place in an entry had to be looked for. It now begins with two numbers: a hash
-- of the queue, so that one queue can still be searched, and one of task and route within it. Names are compared in the row.
DROP INDEX {schema}.waiting_ready;
CREATE INDEX waiting_ready ON {schema}.waiting (
    hashtextextended(queue, 0), hashtextextended(task, hashtextextended(route, 0)), urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect;
