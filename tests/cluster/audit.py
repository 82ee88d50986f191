"""Triggers of the tests' own in the database: who raised which epoch, and who did what to a shard of another one's.

Every connection of a node says which process it belongs to, and the latest raise of a shard's epoch says whose shard it
is. A claim, the end of a lost worker's attempt, a firing or a removal of a dedupe key by any other process is a
*trespass*, and so is a claim under another epoch than the present one. They are written down in the same transaction,
with what is committed at that moment before one's eyes.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from tests.cluster.addresses import PROCESS_SETTING
from tests.cluster.history import EpochRaise, Trespass

FORGER: Final = "forger"
"""The process that a test pretends to be, to see whether the audit is awake."""

_SETUP: Final[LiteralString] = """
CREATE SCHEMA audit;
CREATE TABLE audit.raises (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    shard integer NOT NULL, before bigint NOT NULL, epoch bigint NOT NULL,
    process text NOT NULL, owner text, incarnation bigint);
CREATE INDEX ON audit.raises (shard, number);
CREATE TABLE audit.trespasses (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deed text NOT NULL, shard integer NOT NULL, epoch bigint NOT NULL, used bigint, process text NOT NULL, owner text);
-- What the database knew of the worker when the reaper gave an attempt of it back.
CREATE TABLE audit.reaps (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id bigint NOT NULL, claim bigint NOT NULL, process text NOT NULL, worker text NOT NULL,
    lease_until timestamptz NOT NULL, lost_at timestamptz, ended_at timestamptz);

CREATE FUNCTION audit.process() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting({setting}, true), '')
$$;
-- The process that has raised the shard's epoch to what it is.
CREATE FUNCTION audit.owner(which integer) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT r.process FROM audit.raises r WHERE r.shard = which ORDER BY r.number DESC LIMIT 1
$$;

CREATE FUNCTION audit.raised() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.raises (shard, before, epoch, process, owner, incarnation)
    VALUES (NEW.shard, OLD.epoch, NEW.epoch, audit.process(), NEW.owner, NEW.owner_incarnation);
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON shardwheel_store.shards FOR EACH ROW
    WHEN (OLD.epoch IS DISTINCT FROM NEW.epoch) EXECUTE FUNCTION audit.raised();

CREATE FUNCTION audit.claimed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.trespasses (deed, shard, epoch, used, process, owner)
    SELECT DISTINCT 'claim', n.shard, s.epoch, n.claim_epoch, audit.process(), audit.owner(n.shard)
    FROM new n JOIN old o ON o.id = n.id JOIN shardwheel_store.shards s ON s.shard = n.shard
    WHERE n.claim > o.claim AND (n.claim_epoch <> s.epoch OR audit.process() IS DISTINCT FROM audit.owner(n.shard));
    RETURN NULL;
END $$;
CREATE FUNCTION audit.fired() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.trespasses (deed, shard, epoch, process, owner)
    SELECT DISTINCT 'fire', n.shard, s.epoch, audit.process(), audit.owner(n.shard)
    FROM new n JOIN shardwheel_store.shards s ON s.shard = n.shard
    WHERE n.schedule_id IS NOT NULL AND audit.process() IS DISTINCT FROM audit.owner(n.shard);
    RETURN NULL;
END $$;
CREATE FUNCTION audit.cleaned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.trespasses (deed, shard, epoch, process, owner)
    SELECT DISTINCT 'clean', o.shard, s.epoch, audit.process(), audit.owner(o.shard)
    FROM old o JOIN shardwheel_store.shards s ON s.shard = o.shard
    WHERE audit.process() IS DISTINCT FROM audit.owner(o.shard);
    RETURN NULL;
END $$;
-- Outcome 3, worker lost, is the reaper's alone; an attempt over its time may also end by its worker's word.
CREATE FUNCTION audit.reaped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.trespasses (deed, shard, epoch, process, owner)
    SELECT DISTINCT 'reap', s.shard, s.epoch, audit.process(), audit.owner(s.shard)
    FROM new n JOIN shardwheel_store.shards s ON s.shard = (n.job_id & 4095)::integer
    WHERE n.outcome = 3 AND audit.process() IS DISTINCT FROM audit.owner(s.shard);
    INSERT INTO audit.reaps (job_id, claim, process, worker, lease_until, lost_at, ended_at)
    SELECT n.job_id, n.claim, audit.process(), w.name, w.lease_until, w.lost_at, w.ended_at
    FROM new n JOIN shardwheel_store.workers w ON w.id = n.worker_id WHERE n.outcome = 3;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_reaped AFTER INSERT ON shardwheel_store.attempts
    REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION audit.reaped();
"""

# Statements name a partition, or the table of all; triggers of statements are each table's own.
_TABLES: Final[LiteralString] = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'shardwheel_store' AND c.relkind IN ('r', 'p') AND c.relname ~ {pattern}
"""
_ON_JOBS: Final[LiteralString] = """
CREATE TRIGGER audit_claimed AFTER UPDATE ON {table}
    REFERENCING OLD TABLE AS old NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION audit.claimed();
CREATE TRIGGER audit_fired AFTER INSERT ON {table}
    REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION audit.fired();
"""
_ON_KEYS: Final[LiteralString] = """
CREATE TRIGGER audit_cleaned AFTER DELETE ON {table}
    REFERENCING OLD TABLE AS old FOR EACH STATEMENT EXECUTE FUNCTION audit.cleaned();
"""

_LITTER: Final[LiteralString] = """
INSERT INTO shardwheel_store.dedupe_keys
    (shard, namespace_id, handler_id, key, job_id, content_hash, expires_at, sweep_at)
SELECT s.shard, h.namespace_id, h.id, 'litter ' || gen_random_uuid(), 0, '', now(), now()
FROM shardwheel_store.shards s CROSS JOIN (SELECT * FROM shardwheel_store.handlers ORDER BY id LIMIT 1) h
WHERE random() < {share}
"""


def install(dsn: str) -> None:
    """Set the audit up in a migrated database in which no node has been yet."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection, connection.transaction():
        connection.execute(sql.SQL(_SETUP).format(setting=sql.Literal(PROCESS_SETTING)))
        for pattern, triggers in ((r"^jobs(_\d+)?$", _ON_JOBS), (r"^dedupe_keys(_\d+)?$", _ON_KEYS)):
            tables = sql.SQL(_TABLES).format(pattern=sql.Literal(pattern))
            for (name,) in connection.execute(tables).fetchall():
                connection.execute(sql.SQL(triggers).format(table=sql.Identifier("shardwheel_store", name)))


def litter(dsn: str, share: float) -> None:
    """Leave a dedupe key that is to be removed at once in about this share of the shards."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as connection:
        connection.execute(sql.SQL(_LITTER).format(share=sql.Literal(share)))


def read_raises(dsn: str) -> tuple[EpochRaise, ...]:
    """Return every raise of an epoch, in the order in which they happened."""
    query = "SELECT shard, before, epoch, process, owner, incarnation FROM audit.raises ORDER BY shard, number"
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        return tuple(EpochRaise(*row) for row in connection.execute(query))


def read_trespasses(dsn: str) -> tuple[Trespass, ...]:
    """Return what was done to a shard by a process that did not own it. Raises AssertionError if the audit sleeps."""
    query = "SELECT deed, shard, epoch, used, process, owner FROM audit.trespasses ORDER BY number"
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        _trespass(connection)
        found = [Trespass(*row) for row in connection.execute(query)]
    assert any(one.process == FORGER for one in found), "the audit does not see a forged removal of a dedupe key"
    return tuple(one for one in found if one.process != FORGER)


def read_reaps(dsn: str, jobs: Sequence[int]) -> list[str]:
    """Return, in words, how attempts of these jobs were given back by the reaper: for whoever looks for a cause."""
    query = (
        "SELECT job_id, claim, process, at, worker, lease_until, lost_at, ended_at FROM audit.reaps"
        " WHERE job_id = ANY(%s) ORDER BY number"
    )
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        return [
            f"job {job}, claim {claim}: reaped by {process} at {at}; the lease of {worker} was until {until},"
            f" lost at {lost}, ended at {ended}"
            for job, claim, process, at, worker, until, lost, ended in connection.execute(query, (list(jobs),))
        ]


def _trespass(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Remove a dedupe key without owning its shard."""
    connection.execute("SELECT set_config(%s, %s, false)", (PROCESS_SETTING, FORGER))
    connection.execute(sql.SQL(_LITTER).format(share=sql.Literal(1.0)))
    connection.execute("DELETE FROM shardwheel_store.dedupe_keys WHERE job_id = 0")
