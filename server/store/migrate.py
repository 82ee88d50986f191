"""Schema versions and the settings of the database role.

Migrations are numbered files that only go forward. A release first expands the schema and contracts it a release
later, so that nodes of two neighbouring versions serve one schema: a node accepts any schema whose `compatible_from`
is not above its own version. The number of shards and partitions is fixed by the first migration and never changes.
"""

import asyncio
import logging
from importlib import resources
from typing import Final

from psycopg import Error as PsycopgError
from psycopg import errors
from psycopg.sql import SQL, Identifier, Literal

from server.domain.errors import InvalidInput
from server.store.database import Connection, classify, single_connection
from server.store.errors import SchemaMismatch, Unavailable
from server.store.partitions import ensure_time_partitions

log = logging.getLogger(__name__)

SCHEMA: Final = "shardwheel_store"

# (version, name, package that holds it, file, compatible_from)
MIGRATIONS: Final = (
    (1, "core", "server.store", "migrations/0001_core.sql", 1),
    (2, "coordinator", "shard_manager.postgres", "schema.sql", 1),
    (3, "functions", "server.store", "migrations/0003_functions.sql", 1),
    (4, "worker_streams", "server.store", "migrations/0004_worker_streams.sql", 1),
    (5, "coordinator_in_charge", "server.store", "migrations/0005_coordinator.sql", 1),
    (6, "access", "server.store", "migrations/0006_access.sql", 1),
    (7, "kafka", "server.store", "migrations/0007_kafka.sql", 1),
    (8, "submit", "server.store", "migrations/0008_submit.sql", 1),
)
VERSION: Final = MIGRATIONS[-1][0]

# Plans are pinned because statistics of a table that fills and empties all day flip them to sorts and full scans.
ROLE_SETTINGS: Final = {
    "search_path": f"{SCHEMA}, public",
    "timezone": "UTC",
    "synchronous_commit": "on",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "idle_in_transaction_session_timeout": "3s",
    "lock_timeout": "2s",
    "statement_timeout": "5s",
    "tcp_user_timeout": "5s",
}

# A server that accepts a connection and then says nothing must not hold up a start for ever.
_CHECK_S: Final = 20.0

_LEAF_SETTINGS: Final = {
    "jobs": "fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, "
    "autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.2",
    "dedupe_keys": "fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0",
    "schedules": "fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0",
}


async def migrate(dsn: str, *, shards: int = 64, partitions: int = 16) -> list[str]:
    """Bring the schema up to this version and return the names of the migrations that were applied.

    Safe to run again and from several places at once. `shards` (a power of two up to 1024) and `partitions` (at
    most 64, a divisor of `shards`) count only for a new database. Raises `InvalidInput` for numbers that do not fit,
    `SchemaMismatch` for a schema that is too new.
    """
    _check_numbers(shards, partitions)
    async with single_connection(dsn) as connection, connection.transaction():
        await _run(connection, "SET LOCAL statement_timeout = 0")
        await _run(connection, "SET LOCAL lock_timeout = '60s'")
        await _run(connection, "SELECT pg_advisory_xact_lock(hashtext('shardwheel migrate'))")
        await _run(connection, f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await _run(connection, f"SET LOCAL search_path = {SCHEMA}, public")
        await _run(
            connection,
            "CREATE TABLE IF NOT EXISTS schema_migrations (version integer PRIMARY KEY, name text NOT NULL, "
            "compatible_from integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
        )
        applied = await _applied(connection)
        _check(applied)
        names = []
        for version, name, package, file, compatible_from in MIGRATIONS:
            if version in applied:
                continue
            text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
            await connection.execute(text.encode())
            await connection.execute(
                "INSERT INTO schema_migrations (version, name, compatible_from) VALUES (%s, %s, %s)",
                (version, name, compatible_from),
            )
            if version == 1:
                await _create_leaves(connection, shards, partitions)
            names.append(f"{version:04d}_{name}")
            log.info("migration applied", extra={"version": version, "migration": name})
        await ensure_time_partitions(connection)
    await apply_role_settings(dsn)
    return names


async def apply_role_settings(dsn: str) -> None:
    """Set planner pins and timeouts for the connecting role in its database (a template database loses them)."""
    async with single_connection(dsn) as connection, connection.transaction():
        # Two that change the settings of one role at the same time would fail: "tuple concurrently updated".
        await _run(connection, "SELECT pg_advisory_xact_lock(hashtext('shardwheel role settings'))")
        row = await (await connection.execute("SELECT current_user, current_database()")).fetchone()
        assert row is not None
        target = SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}")
        for name, value in ROLE_SETTINGS.items():
            if name == "search_path":
                statement = SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}, public").format(
                    Identifier(row[0]), Identifier(row[1]), Identifier(SCHEMA)
                )
            else:
                statement = target.format(Identifier(row[0]), Identifier(row[1]), Identifier(name), Literal(value))
            await connection.execute(statement)


async def check_schema(dsn: str) -> tuple[int, int]:
    """Return (shards, partitions) of a database that this version can serve, else raise `SchemaMismatch`.

    Raises `AccessDenied` if the database does not let this node in, `Unavailable` if it is away.
    """
    try:
        async with asyncio.timeout(_CHECK_S), single_connection(dsn) as connection:
            return await _checked_schema(connection)
    except errors.InsufficientPrivilege as error:
        raise SchemaMismatch(
            f"{error}: connect as the role that ran `shardwheel migrate`, or run it as this role"
        ) from error
    except TimeoutError as error:
        raise Unavailable(f"no answer from the database within {_CHECK_S:g} s") from error
    except PsycopgError as error:
        raise classify(error, sent=False) from error


async def _checked_schema(connection: Connection) -> tuple[int, int]:
    found = await (await connection.execute(f"SELECT to_regclass('{SCHEMA}.schema_migrations')")).fetchone()
    if found is None or found[0] is None:
        raise SchemaMismatch("the database has no schema yet: run `shardwheel migrate` first")
    applied = await _applied(connection)
    _check(applied)
    if max(applied, default=0) < VERSION:
        raise SchemaMismatch(
            f"the database's schema is version {max(applied, default=0)}, this node needs {VERSION}: "
            "run `shardwheel migrate`"
        )
    row = await (await connection.execute(f"SELECT shards, partitions FROM {SCHEMA}.cluster")).fetchone()
    if row is None:
        raise SchemaMismatch("the table `cluster` is empty: the schema was not made by `shardwheel migrate`")
    pinned = await (await connection.execute("SELECT current_user, current_setting('search_path')")).fetchone()
    if pinned is None or SCHEMA not in pinned[1]:
        raise SchemaMismatch(
            f"the role {pinned and pinned[0]} has no settings in this database: run `shardwheel migrate` as the role "
            "that nodes connect as"
        )
    return row[0], row[1]


def _check_numbers(shards: int, partitions: int) -> None:
    if not 1 <= shards <= 1024 or shards & (shards - 1):
        raise InvalidInput("shards", shards, "has to be a power of two from 1 to 1024")
    if not 1 <= partitions <= 64 or shards % partitions:
        raise InvalidInput("partitions", partitions, f"has to be from 1 to 64 and to divide the {shards} shards")


async def _applied(connection: Connection) -> dict[int, int]:
    cursor = await connection.execute(f"SELECT version, compatible_from FROM {SCHEMA}.schema_migrations")
    return dict(await cursor.fetchall())


def _check(applied: dict[int, int]) -> None:
    newest = max(applied, default=0)
    if newest > VERSION and applied[newest] > VERSION:
        raise SchemaMismatch(
            f"the database's schema is version {newest}, which needs nodes of schema version {applied[newest]} or "
            f"newer; this one knows {VERSION}: upgrade this node"
        )


async def _create_leaves(connection: Connection, shards: int, partitions: int) -> None:
    await connection.execute("INSERT INTO cluster (shards, partitions) VALUES (%s, %s)", (shards, partitions))
    await connection.execute("INSERT INTO shards (shard) SELECT generate_series(0, %s - 1)", (shards,))
    width = shards // partitions
    for table, settings in _LEAF_SETTINGS.items():
        for number in range(partitions):
            statement = SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({}) WITH (" + settings + ")")
            await connection.execute(
                statement.format(
                    Identifier(f"{table}_{number:04d}"),
                    Identifier(table),
                    Literal(number * width),
                    Literal((number + 1) * width),
                )
            )


async def _run(connection: Connection, statement: str) -> None:
    await connection.execute(statement.encode())
