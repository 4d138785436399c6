-- A turn that can be told to claim nothing, and that goes on behind marks. The turn of before stays for workers of before.

-- Takes a turn, unless there is nothing to be found, and gives the open lanes that are wanted, each with what runs under its
-- key, how many jobs were found there (as many as could pass, and one more) and the places of those that pass: each job has
-- its number under its key, after those that run, and passes if the limit reaches so far. It is simple where the lanes are
-- few, each has one key without a rate, none that is wanted waits for a rate, and none is left to be opened; where it is not,
-- no jobs are looked for. In lanes that have a mark only jobs behind it are. `withheld`: nothing is claimed now. `unheard`:
-- there may be more news; `limits`: what nobody has read yet; `took`: the seconds of the turn, without the wait for it.
CREATE FUNCTION {schema}.limit_turn(
    withheld boolean, of_queues text[], of_tasks text[], of_route text, by_version integer, wanted integer, at bigint,
    bound integer, look integer, mark_gates uuid[], mark_queues text[], mark_tasks text[], mark_routes text[],
    mark_urgencies integer[], mark_ranks bigint[], mark_ids uuid[])
RETURNS TABLE (
    simple boolean, unheard boolean, number bigint, gate uuid, key uuid, most bigint, running bigint, limits text,
    jobs bigint, places tid[], took float8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
<<turn>> -- a column that is added may have any name
DECLARE
    instant bigint := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    began timestamptz;
    heard bigint;
BEGIN
    IF withheld THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM {schema}.limit_news) AND NOT EXISTS (SELECT 1 FROM {schema}.limit_room)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at <= instant)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at IS NOT NULL AND closed_at > instant)
        AND NOT EXISTS (
            SELECT 1 FROM {schema}.limit_gates AS w
            WHERE w.closed_by IS NULL AND (of_queues IS NULL OR w.queue = ANY(of_queues))
                AND (of_tasks IS NULL OR w.task = ANY(of_tasks)) AND (of_route IS NULL OR w.route = of_route)
                AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused))
        AND (
            SELECT count(*) < look AND count(*) FILTER (
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)) = 0
            FROM (SELECT * FROM {schema}.limit_gates WHERE opens_at IS NOT NULL LIMIT look) AS w)
    THEN
        RETURN;
    END IF;
    heard := {schema}.limit_hear(at, bound, look);
    began := clock_timestamp();
    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT w.* FROM {schema}.limit_gates AS w
        WHERE w.closed_by IS NULL AND (of_queues IS NULL OR w.queue = ANY(of_queues))
            AND (of_tasks IS NULL OR w.task = ANY(of_tasks)) AND (of_route IS NULL OR w.route = of_route)
            AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused)
        ORDER BY w.number LIMIT look
    ),
    rated AS MATERIALIZED (
        SELECT w.queue, w.task, w.route FROM {schema}.limit_gates AS w WHERE w.opens_at IS NOT NULL LIMIT look
    ),
    simply AS MATERIALIZED (
        SELECT count(*) = count(lane.key) AND count(*) < look AND (SELECT count(*) < look FROM rated)
            AND NOT EXISTS (
                SELECT 1 FROM rated AS w
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)
                    AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused))
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.limit_room CROSS JOIN LATERAL (
                    SELECT 1 FROM {schema}.limit_gates
                    WHERE limit_gates.closed_by = limit_room.key AND limit_gates.opens_at IS NULL LIMIT 1) AS still) AS so
        FROM lane
    ),
    used AS MATERIALIZED (
        SELECT every.key, (SELECT count(*) FROM {schema}.holds WHERE holds.slot = every.key)
            + (SELECT count(*) FROM {schema}.limit_slots WHERE limit_slots.key = every.key) AS running
        FROM (SELECT DISTINCT lane.key FROM lane WHERE (SELECT so FROM simply)) AS every
    ),
    best AS MATERIALIZED (
        SELECT lane.number, lane.most, found.*,
            used.running + row_number() OVER (PARTITION BY lane.key ORDER BY found.urgency, found.rank, found.id) AS would_run
        FROM lane JOIN used ON used.key = lane.key
            LEFT JOIN unnest(
                mark_gates, mark_queues, mark_tasks, mark_routes, mark_urgencies, mark_ranks, mark_ids
            ) AS mark (gate, queue, task, route, urgency, rank, id)
                ON mark.gate = lane.gate AND mark.queue = lane.queue AND mark.task = lane.task AND mark.route = lane.route
            CROSS JOIN LATERAL (
            SELECT w.ctid AS place, w.urgency, w.rank, w.id FROM {schema}.waiting AS w
            WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                AND (w.urgency, w.rank, w.id) > (
                    coalesce(mark.urgency, -2147483648), coalesce(mark.rank, -9223372036854775808),
                    coalesce(mark.id, '00000000-0000-0000-0000-000000000000'::uuid))
                AND w.state = 'ready' AND w.parked AND NOT w.suspect AND coalesce(w.min_version, 1) <= by_version
                AND (w.expires_at IS NULL OR w.expires_at > instant OR w.started_at IS NOT NULL)
            ORDER BY w.urgency, w.rank, w.id LIMIT least(greatest(lane.most - used.running, 0), wanted) + 1) AS found
    ),
    passing AS (
        SELECT best.number, best.place FROM best WHERE best.would_run <= best.most
        ORDER BY best.urgency, best.rank, best.id LIMIT wanted
    )
    SELECT simply.so, heard >= bound, lane.number, lane.gate, lane.key, lane.most, used.running,
        CASE WHEN lane.most IS NULL THEN lane.limits END, coalesce(seen.jobs, 0), chosen.places,
        extract(epoch FROM clock_timestamp() - turn.began)::float8
    FROM simply LEFT JOIN lane ON true LEFT JOIN used ON used.key = lane.key
        LEFT JOIN (SELECT best.number, count(*) AS jobs FROM best GROUP BY 1) AS seen ON seen.number = lane.number
        LEFT JOIN (
            SELECT passing.number, array_agg(passing.place) AS places FROM passing GROUP BY 1
        ) AS chosen ON chosen.number = lane.number;
END
$$;
