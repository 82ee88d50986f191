-- expand. Enqueue by SQL: shardwheel.submit stores a job inside the caller's own transaction, so that an application's
-- data and its job are committed together or not at all. What it accepts, refuses and stores is what SubmitJob does:
-- api/validation.py, api/new_jobs.py, domain/policies.py and store/insert.py have twins here; tests hold them together.

-- What a node knows from its settings, told at each start: the function runs where no node is.
ALTER TABLE cluster
    ADD COLUMN max_payload_bytes integer NOT NULL DEFAULT 262144,
    ADD COLUMN job_defaults jsonb NOT NULL DEFAULT
        '{"initial_ms":1000,"max_attempts":4,"maximum_ms":3600000,"multiplier":2.0,"non_retryable":[]}';

CREATE TYPE submit_request AS (
    handler text,
    payload bytea,
    content_type text,
    namespace text,
    name text,
    priority integer,
    due_at timestamptz,
    delay interval,
    dedupe_key text,
    dedupe_ttl interval,
    concurrency_key text,
    concurrency_limit integer,
    labels jsonb,
    max_attempts integer,
    initial_delay interval,
    multiplier double precision,
    max_delay interval,
    non_retryable_error_types text[],
    start_timeout interval,
    attempt_timeout interval,
    total_timeout interval,
    traceparent text
);

-- Validation: each function returns what is wrong with a value and what would be right, or null.

CREATE FUNCTION submit_problem(field text, value text, reason text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format('%s: %s (got %L)', field, reason,
        CASE WHEN char_length(value) > 200 THEN left(value, 200) || '…' ELSE COALESCE(value, '') END)
$$;

CREATE FUNCTION submit_text_problem(field text, value text, most integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN char_length(value) > most THEN
            submit_problem(field, value, format('takes at most %s characters, this has %s', most, char_length(value)))
        WHEN value COLLATE "C" ~ '[\u0001-\u001f\u007f]' THEN
            submit_problem(field, value, 'must not hold control characters')
    END
$$;

CREATE FUNCTION submit_span_problem(field text, value interval, most_days integer, positive boolean)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN extract(epoch FROM value) < 0 OR (positive AND extract(epoch FROM value) = 0) THEN
            submit_problem(field, value::text, CASE WHEN positive
                THEN 'has to be above 0; leave it out for no limit' ELSE 'must not be negative' END)
        WHEN extract(epoch FROM value) > most_days * 86400.0 THEN
            submit_problem(field, value::text, format('is at most %s days', most_days))
    END
$$;

CREATE FUNCTION submit_label_problems(labels jsonb) RETURNS SETOF text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    label record;
    place text;
BEGIN
    IF jsonb_typeof(labels) <> 'object' THEN
        RETURN NEXT submit_problem('labels', labels::text, 'has to be a JSON object of strings');
        RETURN;
    END IF;
    IF (SELECT count(*) FROM jsonb_object_keys(labels)) > 32 THEN
        RETURN NEXT submit_problem('labels', labels::text, 'takes at most 32');
        RETURN;
    END IF;
    FOR label IN SELECT key, value FROM jsonb_each(labels) LOOP
        place := format('labels[%s]', to_json(left(label.key, 63)));
        IF label.key = '' THEN
            RETURN NEXT submit_problem(place, label.key, 'has an empty key');
        END IF;
        IF jsonb_typeof(label.value) <> 'string' THEN
            RETURN NEXT submit_problem(place, label.value::text, 'has to be a string');
        END IF;
        RETURN NEXT submit_text_problem(place, label.key, 63);
        RETURN NEXT submit_text_problem(place, label.value #>> '{}', 200);
    END LOOP;
END
$$;

CREATE FUNCTION submit_error_type_problems(types text[]) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT submit_problem('non_retryable_error_types', cardinality(types) || ' types', 'takes at most 100')
    WHERE cardinality(types) > 100
    UNION ALL
    SELECT CASE WHEN COALESCE(t.name, '') = '' THEN submit_problem(t.place, t.name, 'must not be empty')
        ELSE submit_text_problem(t.place, t.name, 200) END
    FROM (SELECT name, format('non_retryable_error_types[%s]', ord - 1) AS place
          FROM unnest(types) WITH ORDINALITY AS u(name, ord)) t
    WHERE cardinality(types) <= 100
$$;

CREATE FUNCTION submit_key_problems(r submit_request) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT submit_text_problem('dedupe_key', r.dedupe_key, 200)
    UNION ALL SELECT submit_span_problem('dedupe_ttl', r.dedupe_ttl, 3660, false)
    UNION ALL SELECT submit_problem('dedupe_ttl', r.dedupe_ttl::text, 'needs a dedupe_key')
        WHERE r.dedupe_ttl IS NOT NULL AND r.dedupe_key = ''
    UNION ALL SELECT submit_text_problem('concurrency_key', r.concurrency_key, 200)
    UNION ALL SELECT submit_problem('concurrency_limit', r.concurrency_limit::text,
        'has to be from 1 to 10000; 0 means 1') WHERE r.concurrency_limit NOT BETWEEN 0 AND 10000
    UNION ALL SELECT submit_problem('concurrency_limit', r.concurrency_limit::text, 'needs a concurrency_key')
        WHERE r.concurrency_limit BETWEEN 1 AND 10000 AND r.concurrency_key = ''
$$;

CREATE FUNCTION submit_policy_problems(r submit_request) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT submit_problem('max_attempts', r.max_attempts::text, 'has to be from 1 to 1000; 0 is default')
        WHERE r.max_attempts NOT BETWEEN 0 AND 1000
    UNION ALL SELECT submit_problem('multiplier', r.multiplier::text, 'has to be from 1 to 100; 0 is default')
        WHERE r.multiplier <> 0 AND r.multiplier NOT BETWEEN 1 AND 100
    UNION ALL SELECT submit_span_problem('initial_delay', r.initial_delay, 30, false)
    UNION ALL SELECT submit_span_problem('max_delay', r.max_delay, 30, false)
    UNION ALL SELECT submit_problem('initial_delay', r.initial_delay::text,
        format('is at most max_delay, %s', r.max_delay)) WHERE r.initial_delay > r.max_delay
    UNION ALL SELECT submit_error_type_problems(r.non_retryable_error_types)
    UNION ALL SELECT submit_span_problem('start_timeout', r.start_timeout, 3660, true)
    UNION ALL SELECT submit_span_problem('attempt_timeout', r.attempt_timeout, 3660, true)
    UNION ALL SELECT submit_span_problem('total_timeout', r.total_timeout, 3660, true)
$$;

CREATE FUNCTION submit_problems(r submit_request, max_payload_bytes integer)
RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT submit_problem('namespace', r.namespace, 'takes lower-case letters, digits and ''-'', at most 63 characters')
        WHERE r.namespace COLLATE "C" !~ '^[a-z0-9-]{1,63}$'
    UNION ALL SELECT submit_problem('handler', r.handler, CASE WHEN COALESCE(r.handler, '') = '' THEN 'is required'
        ELSE 'takes letters, digits and ''._-/'', 1 to 200 characters' END)
        WHERE COALESCE(r.handler, '') COLLATE "C" !~ '^[A-Za-z0-9._/-]{1,200}$'
    UNION ALL SELECT submit_problem('payload', octet_length(r.payload) || ' bytes', format(
        'takes at most %s bytes; store larger data elsewhere and submit a reference to it', max_payload_bytes))
        WHERE octet_length(r.payload) > max_payload_bytes
    UNION ALL SELECT submit_problem('content_type', r.content_type,
        'has to be a media type in printable ASCII, at most 200 characters')
        WHERE r.content_type COLLATE "C" !~ '^[\u0020-\u007e]{0,200}$'
    UNION ALL SELECT submit_text_problem('name', r.name, 200)
    UNION ALL SELECT submit_problem('priority', r.priority::text,
        'has to be from 1 (most urgent) to 5, or 0 for the default') WHERE r.priority NOT BETWEEN 0 AND 5
    UNION ALL SELECT submit_problem('delay', r.delay::text, 'cannot be combined with due_at; give one of them')
        WHERE r.due_at IS NOT NULL AND r.delay IS NOT NULL
    UNION ALL SELECT submit_problem('due_at', r.due_at::text, 'has to be of the years 2000 to 2199')
        WHERE r.due_at < '2000-01-01 00:00:00+00' OR r.due_at >= '2200-01-01 00:00:00+00'
    UNION ALL SELECT submit_span_problem('delay', r.delay, 3660, false)
    UNION ALL SELECT submit_policy_problems(r)
    UNION ALL SELECT submit_key_problems(r)
    UNION ALL SELECT submit_label_problems(r.labels) WHERE r.labels IS NOT NULL
    UNION ALL SELECT submit_problem('traceparent', r.traceparent,
        'has to be a W3C trace context of version 00: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>')
        WHERE r.traceparent <> ''
          AND r.traceparent COLLATE "C" !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
$$;

-- Policies, as documents of `Policies`: fields that are not set are left out, lengths are whole milliseconds.

CREATE FUNCTION submit_ms(value interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ceil(extract(epoch FROM value) * 1000)::bigint
$$;

CREATE FUNCTION submit_requested(r submit_request) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'max_attempts', NULLIF(r.max_attempts, 0),
        'initial_ms', submit_ms(r.initial_delay),
        'multiplier', NULLIF(r.multiplier, 0),
        'maximum_ms', submit_ms(r.max_delay),
        'non_retryable', CASE WHEN cardinality(r.non_retryable_error_types) > 0 THEN r.non_retryable_error_types END,
        'start_ms', submit_ms(r.start_timeout),
        'attempt_ms', submit_ms(r.attempt_timeout),
        'total_ms', submit_ms(r.total_timeout)))
$$;

-- `first` with its gaps filled from `second`. If the two contradict each other about the first and the longest delay,
-- the one from `first` holds and the other follows it.
CREATE FUNCTION submit_overlay(first jsonb, second jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN (both_set ->> 'initial_ms')::bigint <= (both_set ->> 'maximum_ms')::bigint
          OR NOT both_set ?& ARRAY['initial_ms', 'maximum_ms'] THEN both_set
        WHEN first ? 'maximum_ms' THEN both_set || jsonb_build_object('initial_ms', both_set -> 'maximum_ms')
        ELSE both_set || jsonb_build_object('maximum_ms', both_set -> 'initial_ms')
    END
    FROM (SELECT second || first AS both_set) o
$$;

-- A hash of what is asked for, byte for byte that of `content_hash` in api/new_jobs.py: a key may be repeated by SQL or
-- by the API. Policies count as requested.
CREATE FUNCTION submit_hash(r submit_request, requested jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    due text := 'null,null';
    multiplier text := r.multiplier::text;
    policies text;
    labels text;
    head bytea;
BEGIN
    IF r.delay IS NOT NULL THEN
        due := '"delay",' || (extract(epoch FROM r.delay) * 1000000)::bigint;
    ELSIF r.due_at IS NOT NULL THEN
        due := '"due_at","' || to_char(r.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
            || CASE WHEN date_trunc('second', r.due_at) = r.due_at THEN '' ELSE to_char(r.due_at, '.US') END
            || '+00:00"';
    END IF;
    IF strpos(multiplier, '.') = 0 THEN
        multiplier := multiplier || '.0';
    END IF;
    SELECT string_agg(to_json(key) || ':' || CASE key
            WHEN 'multiplier' THEN multiplier
            WHEN 'non_retryable' THEN to_json(r.non_retryable_error_types)::text
            ELSE value::text END, ',' ORDER BY key COLLATE "C")
        INTO policies FROM jsonb_each(requested);
    SELECT string_agg(to_json(key) || ':' || to_json(value), ',' ORDER BY key COLLATE "C")
        INTO labels FROM jsonb_each_text(r.labels);
    head := convert_to('[' || concat_ws(',', to_json(r.handler), to_json(r.content_type), to_json(r.name), r.priority,
        due, to_json('{' || COALESCE(policies, '') || '}'), COALESCE(to_json('{' || labels || '}')::text, 'null'),
        to_json(r.concurrency_key), CASE WHEN r.concurrency_key = '' THEN 0 ELSE r.concurrency_limit END) || ']',
        'UTF8');
    RETURN sha256(int4send(octet_length(head)) || head || r.payload);
END
$$;

-- Numbers for ids come from the blocks that nodes take as well. Each session has a block of its own, for a minute: ids
-- stay in order of time, and blocks last for ever. A session's own values of two sequences are its memory, because they
-- survive a rollback and the caller cannot write them; nobody reads what the sequences themselves hold.
CREATE SEQUENCE submit_numbers;
CREATE SEQUENCE submit_block_taken_s;

CREATE FUNCTION submit_number() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    block_size CONSTANT bigint := 10000;
    now_s CONSTANT bigint := ceil(extract(epoch FROM clock_timestamp()));
    number bigint := 0;
    age_s bigint := 0;
BEGIN
    BEGIN
        number := currval('submit_numbers') + 1;
        age_s := now_s - currval('submit_block_taken_s');
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        -- The session's first job.
    END;
    IF number % block_size = 0 OR age_s NOT BETWEEN 0 AND 60 THEN
        PERFORM setval('submit_block_taken_s', now_s);
        number := nextval('object_ids') * block_size;
    END IF;
    RETURN setval('submit_numbers', number);
END
$$;

CREATE FUNCTION submit_handler(of_namespace integer, wanted text)
RETURNS TABLE (handler_id integer, defaults jsonb) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT h.id, h.defaults FROM handlers h WHERE h.namespace_id = of_namespace AND h.name = wanted;
    IF FOUND THEN
        RETURN;
    END IF;
    IF (SELECT count(*) FROM handlers h WHERE h.namespace_id = of_namespace) >= 10000 THEN
        RAISE EXCEPTION 'there are 10000 handlers in the namespace already, no more are allowed'
            USING ERRCODE = 'SW005';
    END IF;
    INSERT INTO handlers (namespace_id, name, changed_at) VALUES (of_namespace, wanted, clock_timestamp())
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT h.id, h.defaults FROM handlers h WHERE h.namespace_id = of_namespace AND h.name = wanted;
    IF NOT FOUND THEN
        -- Only under REPEATABLE READ and above: somebody else has just made the handler, out of this snapshot's sight.
        RAISE EXCEPTION 'could not serialize access due to concurrent update' USING ERRCODE = '40001';
    END IF;
END
$$;

-- Takes the dedupe key for the job; returns the id of the job that the key leads to, and whether its content differs.
CREATE FUNCTION submit_take_key(
    new_id bigint, in_namespace integer, of_handler integer, r submit_request, hash bytea, at timestamptz,
    due timestamptz, OUT leads_to bigint, OUT differs boolean
) LANGUAGE plpgsql AS $$
DECLARE
    expiry CONSTANT timestamptz :=
        at + submit_ms(GREATEST(r.dedupe_ttl, interval '10 minutes')) * interval '1 millisecond';
BEGIN
    LOOP
        INSERT INTO dedupe_keys AS k
            (shard, namespace_id, handler_id, concurrency_key, key, job_id, content_hash, expires_at, sweep_at)
        VALUES ((new_id & 4095)::integer, in_namespace, of_handler, r.concurrency_key, r.dedupe_key, new_id, hash,
            expiry, GREATEST(expiry, due))
        ON CONFLICT (shard, namespace_id, handler_id, concurrency_key, key) DO UPDATE
        SET job_id = EXCLUDED.job_id, content_hash = EXCLUDED.content_hash, expires_at = EXCLUDED.expires_at,
            sweep_at = EXCLUDED.sweep_at
        WHERE k.expires_at <= at AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = k.job_id AND j.shard = k.shard);
        SELECT k.job_id, k.content_hash <> hash INTO leads_to, differs FROM dedupe_keys k
        WHERE k.shard = (new_id & 4095)::integer AND k.namespace_id = in_namespace AND k.handler_id = of_handler
          AND k.concurrency_key = r.concurrency_key AND k.key = r.dedupe_key;
        -- A key whose time ran out in between may have been cleaned up: then it is free now.
        EXIT WHEN FOUND;
    END LOOP;
END
$$;

CREATE FUNCTION submit_insert(
    new_id bigint, in_namespace integer, of_handler integer, r submit_request, policies jsonb, at timestamptz,
    due timestamptz
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO jobs (id, shard, namespace_id, handler_id, created_at, due_at, deadline_at, expires_at, priority,
        payload, content_type, name, max_attempts, retry_initial_ms, retry_multiplier, retry_max_ms, non_retryable,
        start_timeout_ms, attempt_timeout_ms, total_timeout_ms, concurrency_key, concurrency_limit, labels,
        traceparent)
    SELECT new_id, (new_id & 4095)::integer, in_namespace, of_handler, at, due,
        due + p.total_ms * interval '1 millisecond',
        LEAST(due + p.start_ms * interval '1 millisecond', due + p.total_ms * interval '1 millisecond'),
        r.priority, r.payload, r.content_type, r.name, p.max_attempts, LEAST(p.initial_ms, 2592000000), p.multiplier,
        LEAST(p.maximum_ms, 2592000000), NULLIF(p.non_retryable, '{}'), p.start_ms, p.attempt_ms, p.total_ms,
        NULLIF(r.concurrency_key, ''), r.concurrency_limit, NULLIF(r.labels, '{}'), NULLIF(r.traceparent, '')
    FROM jsonb_to_record(policies) AS p(max_attempts integer, initial_ms bigint, multiplier double precision,
        maximum_ms bigint, non_retryable text[], start_ms bigint, attempt_ms bigint, total_ms bigint)
$$;

-- Raises SW006 if the namespace would have more pending jobs, or bytes in them, than its quotas allow. Each shard is
-- looked at for each handler, as the claim does it, for no index begins with the namespace.
CREATE FUNCTION submit_check_quotas(of_namespace integer, quotas jsonb, shards integer, size integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    most_jobs CONSTANT bigint := quotas ->> 'pending_jobs';
    most_bytes CONSTANT bigint := quotas ->> 'pending_bytes';
    pending record;
BEGIN
    IF most_jobs IS NULL AND most_bytes IS NULL THEN
        RETURN;
    END IF;
    SELECT count(*) AS jobs, COALESCE(sum(octet_length(q.payload)), 0) AS bytes INTO pending FROM (
        SELECT x.payload FROM generate_series(0, shards - 1) AS s(shard)
        CROSS JOIN (SELECT h.id FROM handlers h WHERE h.namespace_id = of_namespace) w
        CROSS JOIN LATERAL (
            SELECT j.payload FROM jobs j
            WHERE j.state = 0 AND j.shard = s.shard AND j.handler_id = w.id LIMIT most_jobs) x
        UNION ALL
        SELECT x.payload FROM generate_series(0, shards - 1) AS s(shard)
        CROSS JOIN LATERAL (
            SELECT j.payload FROM jobs j
            WHERE j.state = 2 AND j.shard = s.shard AND j.namespace_id = of_namespace LIMIT most_jobs) x) q;
    IF pending.jobs >= most_jobs THEN
        RAISE EXCEPTION 'the namespace has % pending jobs, its quota pending_jobs is %; submit when some are done',
            pending.jobs, most_jobs USING ERRCODE = 'SW006';
    ELSIF pending.bytes + size > most_bytes THEN
        RAISE EXCEPTION 'the namespace has % pending bytes, its quota pending_bytes is %; submit when some are done',
            pending.bytes, most_bytes USING ERRCODE = 'SW006';
    END IF;
END
$$;

-- What is left out means the default, as in the API's messages.
CREATE FUNCTION submit_completed(r submit_request) RETURNS submit_request LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    r.payload := COALESCE(r.payload, '');
    r.content_type := COALESCE(r.content_type, '');
    r.namespace := COALESCE(NULLIF(r.namespace, ''), 'default');
    r.name := COALESCE(r.name, '');
    r.dedupe_key := COALESCE(r.dedupe_key, '');
    r.concurrency_key := COALESCE(r.concurrency_key, '');
    r.priority := COALESCE(NULLIF(r.priority, 0), 3);
    RETURN r;
END
$$;

CREATE FUNCTION submit_job(r submit_request, OUT job_id bigint, OUT created boolean, OUT differs boolean)
LANGUAGE plpgsql AS $$
DECLARE
    -- Not now(): a transaction may have begun long ago.
    at CONSTANT timestamptz := clock_timestamp();
    facts record;
    tenant record;
    worked_by record;
    problems text[];
    requested jsonb;
    due timestamptz;
    shard integer;
BEGIN
    r := submit_completed(r);
    SELECT c.shards, c.max_payload_bytes, c.job_defaults INTO STRICT facts FROM cluster c;
    SELECT array_agg(p) INTO problems FROM submit_problems(r, facts.max_payload_bytes) p WHERE p IS NOT NULL;
    IF problems IS NOT NULL THEN
        RAISE EXCEPTION '%', array_to_string(problems, '; ') USING ERRCODE = 'SW003';
    END IF;
    r.concurrency_limit := COALESCE(NULLIF(r.concurrency_limit, 0), 1);
    SELECT n.id, n.defaults, n.quotas INTO tenant FROM namespaces n WHERE n.name = r.namespace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no namespace %', quote_literal(r.namespace) USING ERRCODE = 'SW004';
    END IF;
    SELECT h.handler_id, h.defaults INTO STRICT worked_by FROM submit_handler(tenant.id, r.handler) h;
    requested := submit_requested(r);
    due := GREATEST(COALESCE(r.due_at, at + submit_ms(r.delay) * interval '1 millisecond'), at);
    shard := CASE
        WHEN r.concurrency_key <> '' THEN shardwheel.shard_of(facts.shards, r.namespace, r.concurrency_key)
        WHEN r.dedupe_key <> '' THEN shardwheel.shard_of(facts.shards, r.namespace, r.dedupe_key)
        ELSE floor(random() * facts.shards)::integer END;
    job_id := submit_number() << 12 | shard;
    created := true;
    differs := false;
    IF r.dedupe_key <> '' THEN
        SELECT k.leads_to = job_id, k.leads_to, k.leads_to <> job_id AND k.differs INTO created, job_id, differs
        FROM submit_take_key(job_id, tenant.id, worked_by.handler_id, r, submit_hash(r, requested), at, due) k;
    END IF;
    IF created THEN
        PERFORM submit_check_quotas(tenant.id, tenant.quotas, facts.shards, octet_length(r.payload));
        PERFORM submit_insert(job_id, tenant.id, worked_by.handler_id, r, submit_overlay(submit_overlay(submit_overlay(
            requested, worked_by.defaults), tenant.defaults), facts.job_defaults), at, due);
    END IF;
END
$$;

-- The interface. Parameters of a later version come at the end, with defaults; names and meanings stay.

-- Submits a job whose payload is JSON; a null payload is an empty one.
CREATE FUNCTION shardwheel.submit(
    handler text,
    payload jsonb DEFAULT NULL,
    namespace text DEFAULT NULL,
    name text DEFAULT NULL,
    priority integer DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    dedupe_key text DEFAULT NULL,
    dedupe_ttl interval DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency_limit integer DEFAULT NULL,
    labels jsonb DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    initial_delay interval DEFAULT NULL,
    multiplier double precision DEFAULT NULL,
    max_delay interval DEFAULT NULL,
    non_retryable_error_types text[] DEFAULT NULL,
    start_timeout interval DEFAULT NULL,
    attempt_timeout interval DEFAULT NULL,
    total_timeout interval DEFAULT NULL,
    traceparent text DEFAULT NULL,
    OUT job_id bigint,
    OUT created boolean,
    OUT differs boolean
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = shardwheel_store, pg_temp
SET extra_float_digits = 1
SET enable_seqscan = off
AS $$
    SELECT s.* FROM submit_job(ROW(handler, convert_to(payload::text, 'UTF8'),
        CASE WHEN payload IS NOT NULL THEN 'application/json' END, namespace, name, priority, due_at, delay, dedupe_key,
        dedupe_ttl, concurrency_key, concurrency_limit, labels, max_attempts, initial_delay, multiplier, max_delay,
        non_retryable_error_types, start_timeout, attempt_timeout, total_timeout, traceparent)::submit_request) s
$$;

-- Submits a job whose payload is opaque, of any media type.
CREATE FUNCTION shardwheel.submit_bytes(
    handler text,
    payload bytea,
    content_type text DEFAULT NULL,
    namespace text DEFAULT NULL,
    name text DEFAULT NULL,
    priority integer DEFAULT NULL,
    due_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    dedupe_key text DEFAULT NULL,
    dedupe_ttl interval DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency_limit integer DEFAULT NULL,
    labels jsonb DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    initial_delay interval DEFAULT NULL,
    multiplier double precision DEFAULT NULL,
    max_delay interval DEFAULT NULL,
    non_retryable_error_types text[] DEFAULT NULL,
    start_timeout interval DEFAULT NULL,
    attempt_timeout interval DEFAULT NULL,
    total_timeout interval DEFAULT NULL,
    traceparent text DEFAULT NULL,
    OUT job_id bigint,
    OUT created boolean,
    OUT differs boolean
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = shardwheel_store, pg_temp
SET extra_float_digits = 1
SET enable_seqscan = off
AS $$
    SELECT s.* FROM submit_job(ROW(handler, payload, content_type, namespace, name, priority, due_at, delay, dedupe_key,
        dedupe_ttl, concurrency_key, concurrency_limit, labels, max_attempts, initial_delay, multiplier, max_delay,
        non_retryable_error_types, start_timeout, attempt_timeout, total_timeout, traceparent)::submit_request) s
$$;

-- The version of the two functions above.
CREATE FUNCTION shardwheel.submit_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

REVOKE ALL ON FUNCTION shardwheel.submit FROM PUBLIC;
REVOKE ALL ON FUNCTION shardwheel.submit_bytes FROM PUBLIC;
