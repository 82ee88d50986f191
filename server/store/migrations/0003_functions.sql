-- expand. The schema "shardwheel" holds functions that other applications may call inside their own transactions.

CREATE SCHEMA IF NOT EXISTS shardwheel;

-- The shard of a text: the first four bytes of its sha256, modulo the number of shards (a power of two). Parts are
-- joined by chr(31) after their byte lengths, so that no two lists of parts collide. Python's twin: domain/sharding.py.
CREATE OR REPLACE FUNCTION shardwheel.shard_of(shards integer, VARIADIC parts text[])
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (('x' || substr(encode(sha256(convert_to(string_agg(octet_length(p)::text || ':' || p, chr(31) ORDER BY n),
           'UTF8')), 'hex'), 1, 8))::bit(32)::bigint & (shards - 1))::integer
    FROM unnest(parts) WITH ORDINALITY AS t(p, n)
$$;

-- Completes the caller's attempt inside the caller's transaction. Raises SW001 if the attempt is no longer open, so
-- that the transaction, and with it the handler's own effect, is rolled back.
CREATE OR REPLACE FUNCTION shardwheel.complete_attempt(job_id bigint, claim bigint, result bytea, content_type text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = shardwheel_store, pg_temp AS $$
DECLARE
    done bigint;
BEGIN
    IF octet_length(result) > 1048576 THEN
        RAISE EXCEPTION 'result: at most 1048576 bytes (got %)', octet_length(result) USING ERRCODE = 'SW002';
    END IF;
    WITH gone AS (
        DELETE FROM jobs j
        WHERE j.id = complete_attempt.job_id AND j.shard = (complete_attempt.job_id & 4095)::integer
          AND j.open_claim = complete_attempt.claim
        RETURNING j.*)
    INSERT INTO job_history (id, due_at, created_at, finished_at, started_at, claim, worker_id, schedule_id,
        scheduled_for, deadline_at, retry_initial_ms, retry_max_ms, attempt_timeout_ms, start_timeout_ms,
        total_timeout_ms, retry_multiplier, shard, handler_id, namespace_id, attempt, max_attempts, concurrency_limit,
        state, priority, name, content_type, concurrency_key, labels, traceparent, non_retryable, error_type,
        error_message, payload, progress, result, result_content_type)
    SELECT g.id, g.due_at, g.created_at, now(), g.started_at, g.claim, g.worker_id, g.schedule_id,
        g.scheduled_for, g.deadline_at, g.retry_initial_ms, g.retry_max_ms, g.attempt_timeout_ms, g.start_timeout_ms,
        g.total_timeout_ms, g.retry_multiplier, g.shard, g.handler_id, g.namespace_id, g.attempt, g.max_attempts,
        g.concurrency_limit, 3, g.priority, g.name, g.content_type, g.concurrency_key, g.labels, g.traceparent,
        g.non_retryable, NULL, NULL, g.payload, g.progress, complete_attempt.result, complete_attempt.content_type
    FROM gone g
    RETURNING id INTO done;
    IF done IS NULL THEN
        RAISE EXCEPTION 'attempt (job %, claim %) is no longer open', job_id, claim USING ERRCODE = 'SW001';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION shardwheel.complete_attempt(bigint, bigint, bytea, text) FROM PUBLIC;
