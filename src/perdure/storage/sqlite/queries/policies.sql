-- name: insert
-- Policies of new jobs; most are stored already.
INSERT INTO perdure_policies (number, max_attempts, timeout, backoff, retention, dead_retention) VALUES {values}
ON CONFLICT DO NOTHING;
