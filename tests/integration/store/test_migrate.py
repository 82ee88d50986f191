"""Migrations: again, at the same time, and on databases that they do not fit."""

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from server.store.errors import SchemaMismatch, Unavailable
from server.store.migrate import MIGRATIONS, ROLE_SETTINGS, SCHEMA, VERSION, apply_role_settings, check_schema, migrate
from server.store.partitions import PARENTS
from tests.support.postgres import PostgresServer

NAMES = [f"{version:04d}_{name}" for version, name, _, _, _ in MIGRATIONS]


def query(dsn: str, statement: str, *params: object) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), params)
        return cursor.fetchall() if cursor.description else []


def test_versions_count_up_and_are_compatible_from_some_earlier_one() -> None:
    versions = [version for version, *_ in MIGRATIONS]
    assert versions == sorted(set(versions))
    assert (versions[0], versions[-1]) == (1, VERSION)
    assert all(1 <= compatible_from <= version for version, *_, compatible_from in MIGRATIONS)


async def test_migrate_twice_does_it_once(empty_database: str) -> None:
    assert await migrate(empty_database) == NAMES
    assert await migrate(empty_database) == []
    assert await check_schema(empty_database) == (64, 16)


async def test_migrate_from_several_places_at_once(empty_database: str) -> None:
    results = await asyncio.gather(*(migrate(empty_database) for _ in range(4)))
    assert sorted(results) == [[], [], [], NAMES]
    assert await check_schema(empty_database) == (64, 16)


@pytest.mark.parametrize(("shards", "partitions"), [(1, 1), (8, 8), (128, 4), (1024, 2)])
async def test_shards_and_partitions_are_chosen_at_the_first_migration(
    empty_database: str, shards: int, partitions: int
) -> None:
    await migrate(empty_database, shards=shards, partitions=partitions)
    assert await check_schema(empty_database) == (shards, partitions)
    # Later on they count no more.
    await migrate(empty_database)
    assert await check_schema(empty_database) == (shards, partitions)
    [(count, highest)] = query(empty_database, "SELECT count(*), max(shard) FROM shards")
    assert (count, highest) == (shards, shards - 1)
    for table in ("jobs", "dedupe_keys", "schedules"):
        [(leaves,)] = query(empty_database, f"SELECT count(*) FROM pg_inherits WHERE inhparent = '{table}'::regclass")
        assert leaves == partitions
        for shard in (0, shards // 2, shards - 1):
            leaf = shard // (shards // partitions)
            statement = "SELECT pg_get_partition_constraintdef(%s::regclass)"
            [(bounds,)] = query(empty_database, statement, f"{table}_{leaf:04d}")
            low, high = leaf * (shards // partitions), (leaf + 1) * (shards // partitions)
            assert f"(shard >= {low}) AND (shard < {high})" in bounds


@pytest.mark.parametrize(
    ("shards", "partitions", "what"),
    [(0, 1, "shards"), (100, 4, "shards"), (2048, 4, "shards"), (64, 0, "partitions"), (64, 3, "partitions"),
     (128, 128, "partitions"), (8, 16, "partitions")],
)  # fmt: skip
async def test_numbers_that_do_not_fit_are_refused(
    empty_database: str, shards: int, partitions: int, what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        await migrate(empty_database, shards=shards, partitions=partitions)
    assert query(empty_database, "SELECT to_regnamespace(%s)::text", SCHEMA) == [(None,)]


async def test_schema_that_is_too_new_is_refused(empty_database: str) -> None:
    await migrate(empty_database)
    newer = VERSION + 1
    insert = "INSERT INTO schema_migrations (version, name, compatible_from) VALUES (%s, 'next', %s)"
    # A newer schema that this version can work with still.
    query(empty_database, insert, newer, VERSION)
    assert await check_schema(empty_database) == (64, 16)
    assert await migrate(empty_database) == []
    query(empty_database, insert, newer + 1, newer)
    for call in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match=f"version {newer + 1}, which needs nodes of schema version {newer}"):
            await call(empty_database)


async def test_schema_that_is_too_old_or_missing_is_refused_with_the_remedy(empty_database: str) -> None:
    with pytest.raises(SchemaMismatch, match="no schema yet: run `shardwheel migrate`"):
        await check_schema(empty_database)
    await migrate(empty_database)
    query(empty_database, "DELETE FROM schema_migrations WHERE version = %s", VERSION)
    with pytest.raises(SchemaMismatch, match=f"version {MIGRATIONS[-2][0]}, this node needs {VERSION}: run"):
        await check_schema(empty_database)


async def test_role_settings_are_applied_from_several_places_at_once(database: str) -> None:
    await asyncio.gather(*(apply_role_settings(database) for _ in range(8)))
    assert query(database, "SHOW plan_cache_mode") == [("force_generic_plan",)]


async def test_database_that_is_away_is_said_so(postgres: PostgresServer) -> None:
    for call in (check_schema, migrate):
        with pytest.raises(Unavailable, match="cannot connect"):
            await call(postgres.dsn("there_is_none"))


async def test_a_migration_that_fails_leaves_nothing(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is one transaction."""
    broken = (*MIGRATIONS, (VERSION + 1, "broken", "server.store", "migrations/none.sql", 1))
    monkeypatch.setattr("server.store.migrate.MIGRATIONS", broken)
    with pytest.raises(FileNotFoundError):
        await migrate(empty_database)
    assert query(empty_database, "SELECT to_regnamespace(%s)::text", SCHEMA) == [(None,)]


async def test_role_settings_hold_for_every_new_connection(database: str) -> None:
    names = ["plan_cache_mode", "enable_seqscan", "lock_timeout", "statement_timeout", "search_path",
             "idle_in_transaction_session_timeout", "synchronous_commit", "timezone", "jit"]  # fmt: skip
    shown = {name: query(database, f"SHOW {name}")[0][0] for name in names}
    assert shown == {name: ROLE_SETTINGS[name] for name in names}
    # Beyond the settings of the role nothing is needed: pgbouncer may hand out any connection.
    assert {name for name, in query(database, "SELECT table_name FROM information_schema.tables "
                                    "WHERE table_schema = %s", SCHEMA)} >= {"jobs", *PARENTS}  # fmt: skip


async def test_nothing_of_ours_lies_in_the_schema_public(database: str) -> None:
    assert query(database, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == []


async def test_role_that_did_not_migrate_is_refused_with_the_remedy(database: str) -> None:
    """Its planner pins, time limits and search path are settings of the role that migrated."""
    other = "shardwheel_other"
    query(database, f"DROP ROLE IF EXISTS {other}")
    query(database, f"CREATE ROLE {other} LOGIN PASSWORD 'x'")
    try:
        dsn = make_conninfo(database, user=other, password="x")
        with pytest.raises(SchemaMismatch, match=r"permission denied .*: connect as the role that ran"):
            await check_schema(dsn)
        query(database, f"GRANT ALL ON SCHEMA {SCHEMA} TO {other}")
        query(database, f"GRANT ALL ON ALL TABLES IN SCHEMA {SCHEMA} TO {other}")
        with pytest.raises(SchemaMismatch, match=rf"the role {other} has no settings .* run `shardwheel migrate`"):
            await check_schema(dsn)
    finally:
        query(database, f"DROP OWNED BY {other}")
        query(database, f"DROP ROLE {other}")
