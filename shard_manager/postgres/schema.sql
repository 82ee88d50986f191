-- Tables of the PostgreSQL coordinator. Unqualified names: search_path decides where they live.
-- All times are by the database clock. A session that is over is deleted, and its leases go with it.

-- Grows whenever a coordinator of any kind begins anew; the first half of every fence.
CREATE SEQUENCE coord_generations;

-- The second half: grows with every lease. A token may be drawn and never used.
CREATE SEQUENCE coord_tokens;

-- Sessions change with every renewal and never grow: room in the page keeps those updates within it (HOT).
CREATE TABLE coord_sessions (
    session_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node        text NOT NULL UNIQUE,
    incarnation bigint NOT NULL,
    state       text NOT NULL CHECK (state IN ('up', 'draining', 'unhealthy')),
    weight      integer NOT NULL CHECK (weight >= 1),
    address     text NOT NULL,
    ttl         interval NOT NULL CHECK (ttl > interval '0'),
    opened_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE coord_leases (
    shard       integer PRIMARY KEY CHECK (shard BETWEEN 0 AND 1023),
    session_id  bigint NOT NULL REFERENCES coord_sessions ON DELETE CASCADE,
    generation  bigint NOT NULL,
    token       bigint NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

CREATE INDEX coord_leases_session ON coord_leases (session_id);

-- One row: the generation of this coordinator, and the plan (version 0, no body: not written yet).
CREATE TABLE coord_plans (
    only_one   boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    generation bigint NOT NULL,
    version    bigint NOT NULL DEFAULT 0,
    body       text CHECK ((body IS NULL) = (version = 0)),
    written_by bigint,
    written_at timestamptz
);
