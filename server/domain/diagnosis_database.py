"""What is wrong with the database: facts in, findings out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from server.domain.diagnosis import (
    DayFacts,
    Finding,
    Holder,
    HolderKind,
    PlanFacts,
    SettingFacts,
    Severity,
    TableFacts,
    span_text,
)

OLDEST_POSTGRES: Final = 15
OPEN_WARNING_S: Final = 300.0
OPEN_CRITICAL_S: Final = 3600.0
# Transactions that a slot or a standby may be behind.
AGE_WARNING: Final = 2_000_000
# PostgreSQL stops to take writes at two thousand millions.
FROZEN_WARNING: Final = 500_000_000
FROZEN_CRITICAL: Final = 1_500_000_000
# Dead rows are worth a word from here on, if they are more than the live ones.
DEAD_ROWS: Final = 20_000
# Days for which there have to be partitions beforehand; they are made four ahead.
DAYS_AHEAD: Final = 2
DAYS_LATE: Final = 2


def settings_findings(facts: SettingFacts, nodes: int, connections: int) -> Iterator[Finding]:
    """Judge PostgreSQL's settings for so many nodes with so many connections each."""
    for name, good in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)):
        if not good:
            yield Finding(
                severity=Severity.CRITICAL, check="settings", subject=name,
                summary=f"{name} is off: a crash of the machine loses jobs, or the whole database",
                remedy=f"set {name} = on in postgresql.conf, and reload",
            )  # fmt: skip
    room = facts.max_connections - facts.reserved_connections
    if nodes * connections > room:
        yield Finding(
            severity=Severity.WARNING, check="settings", subject="max_connections",
            summary=f"{nodes} nodes want {nodes * connections} connections, PostgreSQL has {room}",
            remedy="raise max_connections, or lower --hot-connections and --api-connections of the nodes",
        )  # fmt: skip
    if facts.standbys and not facts.synchronous_standbys:
        yield Finding(
            severity=Severity.WARNING, check="settings", subject="synchronous_standby_names",
            summary="no standby is synchronous: a failover loses jobs that were acknowledged",
            remedy="set synchronous_standby_names, as in 'ANY 1 (pg1, pg2)'",
        )  # fmt: skip
    if facts.version < OLDEST_POSTGRES:
        yield Finding(
            severity=Severity.WARNING, check="settings", subject="server_version",
            summary=f"PostgreSQL {facts.version} is older than what Shardwheel is tested on",
            remedy=f"upgrade to {OLDEST_POSTGRES} or newer",
        )  # fmt: skip
    for name, found, wanted in facts.role:
        yield Finding(
            severity=Severity.WARNING, check="settings", subject=name,
            summary=f"{name} is {found!r} for the role of the nodes, instead of {wanted!r}",
            remedy="run `shardwheel migrate` as that role, or remove what sets it elsewhere, such as a pooler",
        )  # fmt: skip


def schema_findings(version: int, newest: int, invalid_indexes: Sequence[str]) -> Iterator[Finding]:
    """Judge the schema: its version against that of the node, and indexes that were not finished."""
    if version > newest:
        yield Finding(
            severity=Severity.INFO, check="schema",
            summary=f"the schema is version {version}, the node that answers knows {newest}",
            remedy="upgrade the nodes; until then they work",
        )  # fmt: skip
    for name in invalid_indexes:
        yield Finding(
            severity=Severity.CRITICAL, check="schema", subject=name,
            summary="the index is not valid, and not used",
            remedy=f"REINDEX INDEX CONCURRENTLY shardwheel_store.{name}",
        )  # fmt: skip


def plan_findings(plans: Iterable[PlanFacts]) -> Iterator[Finding]:
    """Judge how hot statements would be run."""
    whole = Counter((plan.statement, name) for plan in plans for name in plan.whole)
    for statement, table in sorted(whole):
        yield Finding(
            severity=Severity.CRITICAL, check="plans", subject=table,
            summary=f"the {statement} statement would read the whole table",
            remedy="look for a missing index (compare with a new database), and for settings of the role that differ",
        )  # fmt: skip


def due_index_findings(plans: Iterable[PlanFacts], due_indexes: frozenset[str]) -> Iterator[Finding]:
    """Judge whether claims find due jobs by the due index of their partition."""
    for plan in plans:
        if plan.statement == "claim" and not due_indexes.intersection(plan.indexes):
            yield Finding(
                severity=Severity.CRITICAL, check="plans", subject=plan.table,
                summary="claims do not use the due index: they walk future jobs",
                remedy="look for a missing index (compare with a new database), and run ANALYZE",
            )  # fmt: skip


def upkeep_findings(autovacuum: bool, tables: Iterable[TableFacts]) -> Iterator[Finding]:
    """Judge autovacuum."""
    if not autovacuum:
        yield Finding(
            severity=Severity.CRITICAL, check="autovacuum",
            summary="autovacuum is off: tables grow without end, and claims become slower",
            remedy="set autovacuum = on in postgresql.conf, and reload",
        )  # fmt: skip
    for table in tables:
        yield from _table_findings(table)


def _table_findings(table: TableFacts) -> Iterator[Finding]:
    if not table.autovacuum:
        yield Finding(
            severity=Severity.WARNING, check="autovacuum", subject=table.table,
            summary="autovacuum is off for the table",
            remedy=f"ALTER TABLE shardwheel_store.{table.table} RESET (autovacuum_enabled)",
        )  # fmt: skip
    if table.dead > DEAD_ROWS and table.dead > table.live:
        when = "never" if table.vacuumed_s is None else f"{span_text(table.vacuumed_s)} ago"
        yield Finding(
            severity=Severity.WARNING, check="autovacuum", subject=table.table,
            summary=f"{table.dead} dead rows beside {table.live} live ones; vacuumed {when}",
            remedy="look for old transactions, which keep dead rows, and for autovacuum workers that are all busy; "
            f"VACUUM shardwheel_store.{table.table}",
        )  # fmt: skip
    if table.frozen_age > FROZEN_WARNING:
        yield Finding(
            severity=Severity.CRITICAL if table.frozen_age > FROZEN_CRITICAL else Severity.WARNING,
            check="autovacuum", subject=table.table,
            summary=f"its oldest row is {table.frozen_age} transactions old; at 2000000000 PostgreSQL takes no writes",
            remedy=f"end old transactions, then VACUUM (FREEZE) shardwheel_store.{table.table}",
        )  # fmt: skip


def transaction_findings(holders: Iterable[Holder], *, sees_sessions: bool) -> Iterator[Finding]:
    """Judge what keeps old row versions alive."""
    for holder in holders:
        if holder.open_s is not None and holder.open_s > OPEN_WARNING_S:
            yield Finding(
                severity=Severity.CRITICAL if holder.open_s > OPEN_CRITICAL_S else Severity.WARNING,
                check="transactions", subject=holder.what,
                summary=f"a transaction has been open for {span_text(holder.open_s)}: rows dead since then are kept",
                remedy="end it: ROLLBACK PREPARED" if holder.kind is HolderKind.PREPARED
                else "end it: pg_terminate_backend(pid); give its role idle_in_transaction_session_timeout",
            )  # fmt: skip
        elif holder.kind in (HolderKind.SLOT, HolderKind.STANDBY) and holder.age > AGE_WARNING:
            yield Finding(
                severity=Severity.WARNING, check="transactions", subject=f"{holder.kind} {holder.what}",
                summary=f"it is {holder.age} transactions behind: rows that are dead since are kept",
                remedy="is its consumer gone? pg_drop_replication_slot" if holder.kind is HolderKind.SLOT
                else "look for a long query on the standby, or set hot_standby_feedback = off there",
            )  # fmt: skip
    if not sees_sessions:
        yield Finding(
            severity=Severity.INFO, check="transactions",
            summary="the role of the nodes cannot see the transactions of other roles",
            remedy="as a superuser: GRANT pg_read_all_stats TO the role; it gives no access to data",
        )  # fmt: skip


def day_findings(tables: Iterable[DayFacts]) -> Iterator[Finding]:
    """Judge the partitions that hold a day each."""
    for table in tables:
        missing = [table.today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
        missing = [day for day in missing if day not in table.days]
        if missing:
            yield Finding(
                severity=Severity.WARNING, check="partitions", subject=table.parent,
                summary=f"there is no partition for {', '.join(map(str, missing))}; nodes make them four days ahead",
                remedy="look in the log of the nodes for `loop step failed` with the loop maintenance",
            )  # fmt: skip
        last = table.today - timedelta(days=table.keep_days + DAYS_LATE)
        old = sorted(day for day in table.days if day < last)
        if old:
            yield Finding(
                severity=Severity.WARNING, check="partitions", subject=table.parent,
                summary=f"{len(old)} days are past the retention of {table.keep_days} days, the oldest {old[0]}",
                remedy="something holds locks on them: look for old transactions, and in the log of the nodes",
            )  # fmt: skip
        for name in table.loose:
            yield Finding(
                severity=Severity.WARNING, check="partitions", subject=name,
                summary=f"the table is not attached to {table.parent}: nobody reads or drops it",
                remedy=f"DROP TABLE shardwheel_store.{name}, if you do not need what it holds",
            )  # fmt: skip
