-- Claims along lines read the jobs of paused queues once: they are marked until the queue is resumed.
ALTER TABLE {schema}.waiting ADD COLUMN held_up boolean;
DROP INDEX {schema}.waiting_line;
CREATE INDEX waiting_line ON {schema}.waiting (hashtextextended(task, hashtextextended(route, 0)), urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect AND held_up IS NOT TRUE;
CREATE INDEX waiting_held_up ON {schema}.waiting (queue) WHERE held_up;

-- Marks the jobs of paused queues that stand first in the lines, up to a bound. Gives whether more may stand first. It waits for
-- nobody: jobs and queues that somebody else has locked are left for the next claim. Who resumes a queue waits for those that
-- mark its jobs, and so sees all marks.
CREATE FUNCTION {schema}.hold_up(many boolean, bound integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line record;
    met text[];
    places tid[];
    seen bigint;
    marked bigint;
    left_over bigint := bound;
BEGIN
    IF NOT many OR NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.paused) THEN
        RETURN false;
    END IF;
    FOR line IN
        WITH RECURSIVE every AS (
            (SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.held_up IS NOT TRUE
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1)
            UNION ALL
            SELECT next.task, next.route FROM every CROSS JOIN LATERAL (
                SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.held_up IS NOT TRUE
                    AND hashtextextended(w.task, hashtextextended(w.route, 0))
                        > hashtextextended(every.task, hashtextextended(every.route, 0))
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1) AS next
        )
        SELECT every.task, every.route FROM every
    LOOP
        LOOP
            SELECT array_agg(first.ctid) FILTER (WHERE first.paused), array_agg(DISTINCT first.queue) FILTER (WHERE first.paused),
                count(*)
            INTO places, met, seen
            FROM (
                SELECT w.ctid, w.queue, EXISTS (
                    SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused) AS paused
                FROM {schema}.waiting AS w
                WHERE hashtextextended(w.task, hashtextextended(w.route, 0))
                        = hashtextextended(line.task, hashtextextended(line.route, 0))
                    AND w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.held_up IS NOT TRUE
                ORDER BY w.urgency, w.rank, w.id LIMIT 200) AS first;
            EXIT WHEN places IS NULL;
            SELECT array_agg(shared.name) INTO met FROM (
                SELECT queues.name FROM {schema}.queues WHERE queues.name = ANY(met) AND queues.paused
                ORDER BY queues.name FOR SHARE SKIP LOCKED) AS shared;
            UPDATE {schema}.waiting SET held_up = true WHERE ctid = ANY(ARRAY(
                SELECT w.ctid FROM {schema}.waiting AS w
                WHERE w.ctid = ANY(places) AND w.queue = ANY(met) FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS marked = ROW_COUNT;
            left_over := left_over - marked;
            IF marked = 0 OR left_over <= 0 THEN
                RETURN true;
            END IF;
            EXIT WHEN cardinality(places) < seen;
        END LOOP;
    END LOOP;
    RETURN false;
END
$$;
