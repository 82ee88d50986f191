"""Facts about the database that a diagnosis is drawn from. Reads catalogs and statistics only, no table of jobs."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import orjson
from psycopg.rows import tuple_row

from server.domain.diagnosis import DayFacts, PlanFacts, SettingFacts, TableFacts
from server.store.claim import CLAIM, PEEK, SWEEP
from server.store.database import Connection, Database, Statement
from server.store.migrate import ROLE_SETTINGS, SCHEMA
from server.store.partitions import PARENTS, Retention, keep_times, partition_day

# Set on each connection by the driver, as far as the transport knows it.
_NOT_OF_THE_ROLE: Final = frozenset({"tcp_user_timeout"})

_SETTINGS: Final = """
SELECT current_setting('server_version_num')::int4 / 10000, current_setting('fsync')::bool,
    current_setting('full_page_writes')::bool, current_setting('autovacuum')::bool,
    current_setting('max_connections')::int4, current_setting('superuser_reserved_connections')::int4
        + COALESCE(current_setting('reserved_connections', true)::int4, 0),
    (SELECT count(*) FROM pg_stat_replication)::int4, current_setting('synchronous_standby_names') <> '',
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""

_ROLE: Final = "SELECT n, current_setting(n, true) FROM unnest(%s::text[]) AS n"

_TABLES: Final = f"""
SELECT c.relname, COALESCE(s.n_live_tup, 0), COALESCE(s.n_dead_tup, 0),
    NOT COALESCE(c.reloptions @> ARRAY['autovacuum_enabled=false'] OR c.reloptions @> ARRAY['autovacuum_enabled=off'],
        false),
    extract(epoch FROM now() - GREATEST(s.last_autovacuum, s.last_vacuum))::float8, age(c.relfrozenxid)
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind = 'r'
ORDER BY c.relname
"""

_INVALID: Final = f"""
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND NOT i.indisvalid ORDER BY c.relname
"""

# The children of the due index, whatever they are called.
_DUE_INDEXES: Final = f"""
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('{SCHEMA}.jobs_due')
"""

_DAYS: Final = f"""
SELECT c.relname, i.inhparent IS NOT NULL, (now() AT TIME ZONE 'UTC')::date
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = %s::regclass
WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind = 'r' AND starts_with(c.relname, %s)
"""

# By namespace and handler: live workers, and their slots.
_SLOTS: Final = """
SELECT n.name, h.key, count(*)::int4, sum(h.value::text::int8)::int8
FROM workers w JOIN namespaces n ON n.id = w.namespace_id CROSS JOIN LATERAL jsonb_each(w.handlers) AS h
WHERE w.ended_at IS NULL AND w.lease_until > now()
GROUP BY n.name, h.key
"""

_HOT: Final = {"claim": CLAIM, "peek": PEEK, "sweep": SWEEP}


async def setting_facts(database: Database) -> SettingFacts:
    """Return the settings that matter."""
    [found] = await database.run(_SETTINGS, api=True)
    version, fsync, full_page_writes, autovacuum, most, reserved, standbys, synchronous, sees = found
    names = [name for name in ROLE_SETTINGS if name not in _NOT_OF_THE_ROLE]
    rows = await database.run(_ROLE, (names,), api=True)
    return SettingFacts(
        version=version,
        fsync=fsync,
        full_page_writes=full_page_writes,
        autovacuum=autovacuum,
        max_connections=most,
        reserved_connections=reserved,
        standbys=standbys,
        synchronous_standbys=synchronous,
        role=[(name, is_, ROLE_SETTINGS[name]) for name, is_ in rows if not _as_wanted(name, is_)],
        sees_sessions=sees,
    )


async def table_facts(database: Database) -> list[TableFacts]:
    """Return the upkeep of all tables with rows."""
    return [
        TableFacts(table=table, live=live, dead=dead, autovacuum=auto, vacuumed_s=vacuumed_s, frozen_age=age)
        for table, live, dead, auto, vacuumed_s, age in await database.run(_TABLES, api=True)
    ]


async def invalid_indexes(database: Database) -> list[str]:
    """Return the names of indexes that are not valid."""
    return [name for (name,) in await database.run(_INVALID, api=True)]


async def due_indexes(database: Database) -> frozenset[str]:
    """Return the names of the due indexes of all partitions."""
    return frozenset(name for (name,) in await database.run(_DUE_INDEXES, api=True))


async def live_slots(database: Database) -> dict[tuple[str, str], tuple[int, int]]:
    """Return live workers and their slots by namespace and handler."""
    rows = await database.run(_SLOTS, api=True)
    return {(namespace, handler): (workers, slots) for namespace, handler, workers, slots in rows}


async def clock_ahead_s(database: Database) -> float:
    """Return for how many seconds this machine's clock is ahead of the database's, give or take half a round trip."""
    before = time.time()
    [[now]] = await database.run("SELECT clock_timestamp()", api=True)
    return (before + time.time()) / 2 - float(now.timestamp())


async def plan_facts(database: Database, partitions: int) -> list[PlanFacts]:
    """Return how the statements that find due jobs would be run, for each partition; nothing is run."""
    found = []
    for partition in range(partitions):
        for name, statement in _HOT.items():
            plan = await _plan(database, statement, partition)
            scans = [node for node in _nodes(plan) if str(node.get("Relation Name", "")).startswith("jobs_")]
            found.append(
                PlanFacts(
                    statement=name,
                    table=f"jobs_{partition:04d}",
                    whole=sorted({node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"}),
                    indexes=sorted({node["Index Name"] for node in scans if "Index Name" in node}),
                )
            )
    return found


async def day_facts(database: Database, retention: Retention) -> list[DayFacts]:
    """Return the days for which there are partitions, and tables that look like one and are none."""
    found = []
    keep = keep_times(retention)
    for parent in PARENTS:
        rows = await database.run(_DAYS, (f"{SCHEMA}.{parent}", f"{parent}_"), api=True)
        days = [(name, partition_day(parent, name), attached) for name, attached, _ in rows]
        [[today]] = await database.run("SELECT (now() AT TIME ZONE 'UTC')::date", api=True)
        found.append(
            DayFacts(
                parent=parent,
                today=today,
                days=frozenset(day for _, day, attached in days if attached and day is not None),
                keep_days=-(-keep[parent] // timedelta(days=1)),
                loose=sorted(name for name, day, attached in days if not attached and day is not None),
            )
        )
    return found


def _as_wanted(name: str, found: str | None) -> bool:
    if name == "search_path":
        # Others may be added behind it.
        return found is not None and SCHEMA in found
    return found == ROLE_SETTINGS[name]


async def _plan(database: Database, statement: Statement, partition: int) -> dict[str, Any]:
    numbers = iter(range(1, 100))
    text, count = re.subn(rb"%s", lambda _: b"$%d" % next(numbers), statement.on(partition))
    arguments = b"(" + b", ".join([b"NULL"] * count) + b")" if count else b""

    async def explain(connection: Connection) -> dict[str, Any]:
        cursor = connection.cursor(row_factory=tuple_row)
        # A prepared statement has the plan that the hot path has: the generic one, as the role is set to.
        await cursor.execute(b"PREPARE diagnosed AS " + text)
        try:
            await cursor.execute(b"EXPLAIN (FORMAT JSON) EXECUTE diagnosed" + arguments)
            [(document,)] = await cursor.fetchall()
        finally:
            await cursor.execute(b"DEALLOCATE diagnosed")
        [plan] = orjson.loads(document) if isinstance(document, str | bytes) else document
        return dict(plan["Plan"])

    return await database.transact(explain)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
