"""A database filled so that a statement which walks more than it should stands out.

Everything worth testing lies in one partition: tens of thousands of future rows, thousands that run, thousands parked,
among them the few that are due, overdue, expired or to be cleaned. The other partitions hold a little.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg

from server.embedded import PostgresInstallation
from server.store.migrate import apply_role_settings, migrate
from tests.support.postgres import PostgresServer

PARTITION: Final = 3
# With 64 shards in 16 partitions.
SHARDS: Final = (12, 13, 14, 15)
EPOCH: Final = 7
EPOCHS: Final = tuple((shard, EPOCH) for shard in SHARDS)

# The numbers of what is due for each (shard, handler, priority) of the three handlers, and of what is to be found.
DUE_PER_PROBE: Final = 4
OVERDUE: Final = 8
EXPIRED: Final = 12
OLD_KEYS: Final = 16
FUTURE: Final = 60_000
LOST_WORKER: Final = 3
RUNNING_OF_LOST: Final = 50

_TIMES = "retry_initial_ms, retry_max_ms, retry_multiplier, max_attempts"
_TIMES_VALUES = "1000, 3600000, 2.0, 4"

_FILL = (
    "UPDATE shards SET epoch = 7, generation = 1, token = 100, owner = 'node-1', owner_incarnation = 1",
    "INSERT INTO handlers (namespace_id, name, paused) SELECT 1, 'h' || n, n = 4 FROM generate_series(1, 4) n",
    "INSERT INTO workers (namespace_id, name, incarnation, lease_until, ended_at) "
    "SELECT 1, 'w' || n, 1, now() + interval '15 s', CASE WHEN n = 3 THEN now() END FROM generate_series(1, 40) n",
    "INSERT INTO workers (namespace_id, name, incarnation, lease_until, ended_at) "
    "SELECT 1, 'old' || n, 1, now() - interval '1 day', now() - interval '1 day' FROM generate_series(1, 5000) n",
    # Two of three future rows lie in one (shard, handler), half of those in one priority.
    f"INSERT INTO jobs (id, shard, handler_id, namespace_id, priority, due_at, expires_at, payload, {_TIMES}) "
    "SELECT (n::int8 << 12) | s, s, CASE WHEN n % 3 > 0 THEN 1 ELSE 1 + n % 4 END, 1, "
    "  CASE WHEN n % 2 = 0 THEN 3 ELSE 1 + n / 2 % 5 END, now() + interval '1 h' + n * interval '1 s', "
    "  CASE WHEN n % 2 = 0 THEN now() + interval '2 days' + n * interval '1 s' END, '\\x00', " + _TIMES_VALUES + " "
    f"FROM generate_series(1, {FUTURE}) n, LATERAL (SELECT CASE WHEN n % 3 > 0 THEN 12 ELSE 12 + n % 4 END AS s) x",
    f"INSERT INTO jobs (id, shard, handler_id, namespace_id, priority, due_at, payload, {_TIMES}) "
    "SELECT ((100000 + row_number() OVER ())::int8 << 12) | s, s, h, 1, p, now() - n * interval '1 s', '\\x00', "
    f"  {_TIMES_VALUES} FROM generate_series(12, 15) s, generate_series(1, 4) h, generate_series(1, 5) p, "
    f"  generate_series(1, {DUE_PER_PROBE}) n",
    # Running ones: 50 for each of the 40 workers, some of them over their time, some behind a key.
    "INSERT INTO jobs (id, shard, handler_id, namespace_id, due_at, state, attempt, claim, open_claim, claim_epoch, "
    f"  worker_id, started_at, timeout_at, concurrency_key, payload, {_TIMES}) "
    "SELECT ((200000 + n)::int8 << 12) | (12 + n % 4), 12 + n % 4, 1, 1, now() - interval '1 min', 1, 1, 3, 3, 7, "
    "  1 + n % 40, now() - interval '1 min', "
    f"  CASE WHEN n <= {OVERDUE} THEN now() - interval '30 s' ELSE now() + interval '1 h' + n * interval '1 s' END, "
    "  CASE WHEN n % 200 = 0 THEN 'full' || n / 200 END, '\\x00', "
    + _TIMES_VALUES
    + " FROM generate_series(1, 2000) n",
    # Parked ones: many behind keys whose one slot is taken, a few behind keys with room.
    "INSERT INTO jobs (id, shard, handler_id, namespace_id, due_at, state, concurrency_key, "
    f"  payload, {_TIMES}) "
    "SELECT ((300000 + n)::int8 << 12) | 12, 12, 1, 1, now() - interval '1 min', 2, "
    "  CASE WHEN n % 500 = 0 THEN 'room' || n ELSE 'full' || 1 + n % 10 END, '\\x00', " + _TIMES_VALUES + " "
    "FROM generate_series(1, 5000) n",
    f"INSERT INTO jobs (id, shard, handler_id, namespace_id, due_at, expires_at, payload, {_TIMES}) "
    "SELECT ((400000 + n)::int8 << 12) | (12 + n % 4), 12 + n % 4, 2, 1, now() - interval '1 h', "
    f"  now() - interval '1 min', '\\x00', {_TIMES_VALUES} FROM generate_series(1, {EXPIRED}) n",
    "INSERT INTO dedupe_keys (shard, namespace_id, handler_id, key, job_id, content_hash, expires_at, sweep_at) "
    "SELECT 12 + n % 4, 1, 1, 'key' || n, (n::int8 << 12) | 12, '\\x00', t, t FROM generate_series(1, 20000) n, "
    f"LATERAL (SELECT now() + CASE WHEN n <= {OLD_KEYS} THEN -n ELSE n + 600 END * interval '1 s' AS t) x",
    f"INSERT INTO jobs (id, shard, handler_id, namespace_id, due_at, payload, {_TIMES}) "
    "SELECT ((500000 + n)::int8 << 12) | (n % 64), n % 64, 1, 1, now() - interval '1 min' + n * interval '1 s', "
    f"  '\\x00', {_TIMES_VALUES} FROM generate_series(1, 960) n WHERE n % 64 NOT BETWEEN 12 AND 15",
)


@dataclass(frozen=True, slots=True)
class Filled:
    """The filled databases of one PostgreSQL: with statistics of the empty tables, and with true ones."""

    major: int
    stale: str
    analyzed: str


@contextmanager
def filled(installation: PostgresInstallation) -> Iterator[Filled]:
    """Start a PostgreSQL and fill two databases."""
    with PostgresServer(installation=installation, settings={"autovacuum": "off"}) as server:
        stale = server.create_database()
        asyncio.run(migrate(server.dsn(stale)))
        with psycopg.connect(server.dsn(stale), autocommit=True) as connection:
            connection.execute("SET statement_timeout = 0")
            connection.execute("VACUUM ANALYZE")
            for statement in _FILL:
                connection.execute(statement.encode())
        analyzed = server.create_database(template=stale)
        asyncio.run(apply_role_settings(server.dsn(analyzed)))
        with psycopg.connect(server.dsn(analyzed), autocommit=True) as connection:
            connection.execute("SET statement_timeout = 0")
            connection.execute("VACUUM ANALYZE")
        yield Filled(server.major, server.dsn(stale), server.dsn(analyzed))


def ids(first: int, numbers: Sequence[int], shard: int | None = None) -> list[int]:
    """Return the ids of filled jobs: `first` is the first number of their kind; running ones lie in all shards."""
    return [(first + n) << 12 | (12 + n % 4 if shard is None else shard) for n in numbers]
