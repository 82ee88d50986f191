-- expand. Jobs, schedules and what serves them. Tables live in the schema "shardwheel_store"; the leaf partitions of
-- jobs, dedupe_keys and schedules are made by migrate.py, because their number is chosen once per cluster.

CREATE TABLE cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid(),
    shards integer NOT NULL CHECK (shards BETWEEN 1 AND 1024 AND shards & (shards - 1) = 0),
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 64 AND shards % partitions = 0),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE shards (
    shard integer PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    token bigint NOT NULL DEFAULT 0,
    owner text,
    owner_incarnation bigint,
    acquired_at timestamptz
) WITH (fillfactor = 50);

CREATE TABLE namespaces (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    defaults jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO namespaces (name) VALUES ('default');

CREATE TABLE handlers (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id integer NOT NULL REFERENCES namespaces,
    name text NOT NULL,
    defaults jsonb NOT NULL DEFAULT '{}',
    paused boolean NOT NULL DEFAULT false,
    pause_note text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (namespace_id, name)
);
CREATE INDEX handlers_changed ON handlers (changed_at);

-- One row per incarnation of a worker: the lease of everything it runs.
CREATE TABLE workers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id integer NOT NULL REFERENCES namespaces,
    name text NOT NULL,
    incarnation bigint NOT NULL,
    sdk text NOT NULL DEFAULT '',
    handlers jsonb NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    ended_at timestamptz,
    end_reason text,
    UNIQUE (namespace_id, name, incarnation)
) WITH (fillfactor = 70);
CREATE INDEX workers_live ON workers (namespace_id, name) WHERE ended_at IS NULL;

CREATE SEQUENCE object_ids;

-- state: 0 pending, 1 running, 2 parked (pending behind its concurrency key, outside the due index).
CREATE TABLE jobs (
    id bigint NOT NULL,
    due_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    claim bigint NOT NULL DEFAULT 0,
    open_claim bigint,
    claim_epoch bigint,
    worker_id bigint,
    started_at timestamptz,
    timeout_at timestamptz,
    expires_at timestamptz,
    deadline_at timestamptz,
    schedule_id bigint,
    scheduled_for timestamptz,
    retry_initial_ms bigint NOT NULL,
    retry_max_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    start_timeout_ms bigint,
    total_timeout_ms bigint,
    retry_multiplier double precision NOT NULL,
    shard integer NOT NULL,
    handler_id integer NOT NULL,
    namespace_id integer NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    concurrency_limit integer NOT NULL DEFAULT 1,
    state smallint NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 2)),
    priority smallint NOT NULL DEFAULT 3 CHECK (priority BETWEEN 1 AND 5),
    cancel_requested boolean NOT NULL DEFAULT false,
    name text NOT NULL DEFAULT '',
    content_type text NOT NULL DEFAULT '',
    concurrency_key text,
    labels jsonb,
    traceparent text,
    non_retryable text[],
    error_type text,
    error_message text,
    payload bytea NOT NULL,
    progress bytea,
    PRIMARY KEY (id, shard),
    CHECK (state <> 1 OR (open_claim IS NOT NULL AND worker_id IS NOT NULL AND started_at IS NOT NULL))
) PARTITION BY RANGE (shard);
CREATE INDEX jobs_due ON jobs (shard, handler_id, priority, due_at, id) WHERE state = 0;
CREATE INDEX jobs_running ON jobs (shard, worker_id, id) WHERE state = 1;
CREATE INDEX jobs_timeout ON jobs (shard, timeout_at) WHERE state = 1 AND timeout_at IS NOT NULL;
CREATE INDEX jobs_expiry ON jobs (shard, expires_at) WHERE state <> 1 AND expires_at IS NOT NULL;
CREATE INDEX jobs_key_running ON jobs (shard, namespace_id, concurrency_key)
    WHERE state = 1 AND concurrency_key IS NOT NULL;
CREATE INDEX jobs_parked ON jobs (shard, namespace_id, concurrency_key, priority, due_at, id) WHERE state = 2;
CREATE UNIQUE INDEX jobs_firing ON jobs (shard, schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL;

CREATE TABLE dedupe_keys (
    shard integer NOT NULL,
    namespace_id integer NOT NULL,
    handler_id integer NOT NULL,
    concurrency_key text NOT NULL DEFAULT '',
    key text NOT NULL,
    job_id bigint NOT NULL,
    content_hash bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    -- When the clean-up looks at the row (again): never before expires_at, later while the job is live.
    sweep_at timestamptz NOT NULL,
    PRIMARY KEY (shard, namespace_id, handler_id, concurrency_key, key)
) PARTITION BY RANGE (shard);
CREATE INDEX dedupe_keys_sweep ON dedupe_keys (shard, sweep_at);

-- state: 3 completed, 4 failed, 5 cancelled. Partitioned by final class, then by day of finished_at.
CREATE TABLE job_history (
    id bigint NOT NULL,
    due_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    started_at timestamptz,
    claim bigint NOT NULL,
    worker_id bigint,
    schedule_id bigint,
    scheduled_for timestamptz,
    deadline_at timestamptz,
    retry_initial_ms bigint NOT NULL,
    retry_max_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    start_timeout_ms bigint,
    total_timeout_ms bigint,
    retry_multiplier double precision NOT NULL,
    shard integer NOT NULL,
    handler_id integer NOT NULL,
    namespace_id integer NOT NULL,
    attempt integer NOT NULL,
    max_attempts integer NOT NULL,
    concurrency_limit integer NOT NULL,
    state smallint NOT NULL CHECK (state IN (3, 4, 5)),
    priority smallint NOT NULL,
    name text NOT NULL,
    content_type text NOT NULL,
    concurrency_key text,
    labels jsonb,
    traceparent text,
    non_retryable text[],
    error_type text,
    error_message text,
    payload bytea NOT NULL,
    progress bytea,
    result bytea,
    result_content_type text
) PARTITION BY LIST (state);
CREATE TABLE job_history_completed PARTITION OF job_history FOR VALUES IN (3) PARTITION BY RANGE (finished_at);
CREATE TABLE job_history_unsuccessful PARTITION OF job_history FOR VALUES IN (4, 5) PARTITION BY RANGE (finished_at);
CREATE INDEX job_history_id ON job_history (id);
CREATE INDEX job_history_schedule ON job_history (schedule_id, id) WHERE schedule_id IS NOT NULL;

-- One row per unsuccessful attempt. outcome: 1 failed, 2 timed out, 3 worker lost, 4 cancelled.
CREATE TABLE attempts (
    job_id bigint NOT NULL,
    claim bigint NOT NULL,
    attempt integer NOT NULL,
    worker_id bigint,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome smallint NOT NULL CHECK (outcome BETWEEN 1 AND 4),
    error_type text NOT NULL,
    error_message text NOT NULL
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempts_job ON attempts (job_id);

-- overlap: 1 skip, 2 buffer one, 3 buffer all, 4 cancel running, 5 allow. catch_up: 1 one, 2 all, 3 none.
CREATE TABLE schedules (
    id bigint NOT NULL,
    next_fire_at timestamptz,
    last_fired_at timestamptz,
    last_job_id bigint,
    fired_count bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    shard integer NOT NULL,
    namespace_id integer NOT NULL,
    handler_id integer NOT NULL,
    overlap smallint NOT NULL CHECK (overlap BETWEEN 1 AND 5),
    catch_up smallint NOT NULL CHECK (catch_up BETWEEN 1 AND 3),
    paused boolean NOT NULL DEFAULT false,
    pause_note text NOT NULL DEFAULT '',
    catch_up_window_ms bigint NOT NULL,
    jitter_ms bigint NOT NULL DEFAULT 0,
    start_at timestamptz,
    end_at timestamptz,
    name text NOT NULL,
    timing jsonb NOT NULL,
    job jsonb NOT NULL,
    payload bytea NOT NULL,
    skipped_counts jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (id, shard)
) PARTITION BY RANGE (shard);
CREATE INDEX schedules_due ON schedules (shard, next_fire_at, id) WHERE NOT paused AND next_fire_at IS NOT NULL;

-- Names are unique per namespace over all shards; the row also leads from a name to the schedule's shard.
CREATE TABLE schedule_names (
    namespace_id integer NOT NULL REFERENCES namespaces,
    name text COLLATE "C" NOT NULL,
    schedule_id bigint NOT NULL UNIQUE,
    handler_id integer NOT NULL,
    PRIMARY KEY (namespace_id, name)
);
CREATE INDEX schedule_names_handler ON schedule_names (namespace_id, handler_id, name);
