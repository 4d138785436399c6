-- Lines: the ready jobs of one task and route over all queues, in the order of a claim. Where there are very many queues, a
-- claim for every queue finds the lanes of the best jobs here, without a look at each lane.
CREATE INDEX waiting_line ON {schema}.waiting (hashtextextended(task, hashtextextended(route, 0)), urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect;
CREATE INDEX queues_paused ON {schema}.queues (name) WHERE paused;
