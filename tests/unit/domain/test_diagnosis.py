"""What a doctor makes of facts: every rule on both of its sides."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta

import pytest

from server.domain.diagnosis import (
    ClusterFacts,
    DayFacts,
    Finding,
    HandlerFacts,
    Holder,
    HolderKind,
    PlanFacts,
    SettingFacts,
    Severity,
    ShardFacts,
    TableFacts,
)
from server.domain.diagnosis_cluster import clock_findings, cluster_findings, handler_findings
from server.domain.diagnosis_database import (
    day_findings,
    due_index_findings,
    plan_findings,
    schema_findings,
    settings_findings,
    transaction_findings,
    upkeep_findings,
)

GOOD = SettingFacts(
    version=18, fsync=True, full_page_writes=True, autovacuum=True, max_connections=100, reserved_connections=3,
    standbys=0, synchronous_standbys=False, role=[], sees_sessions=True,
)  # fmt: skip
TABLE = TableFacts(table="jobs_0000", live=100, dead=0, autovacuum=True, vacuumed_s=60.0, frozen_age=1000)
TODAY = date(2026, 11, 30)
DAYS = frozenset(TODAY + timedelta(days=offset) for offset in range(-7, 5))
HISTORY = DayFacts(parent="job_history_completed", today=TODAY, days=DAYS, keep_days=7, loose=[])
CLUSTER = ClusterFacts(
    leader="node-a", trouble="", nodes=[("node-a", "up"), ("node-b", "up")], shards=[], shard_count=64, paused=False
)
HANDLER = HandlerFacts(name="default/h", paused=False, due=5, waited_s=1.0, workers=1, slots=10, running=10)


def seen(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """What was found: severity and subject. Every finding has a text and says what to do."""
    found = list(findings)
    assert all(finding.summary and finding.remedy and finding.check for finding in found)
    return [(finding.severity.name.lower(), finding.subject) for finding in found]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert seen(settings_findings(GOOD, 3, 16)) == []
    assert seen(schema_findings(5, 5, [])) == []
    assert seen(upkeep_findings(True, [TABLE])) == []
    assert seen(transaction_findings([], sees_sessions=True)) == []
    assert seen(day_findings([HISTORY])) == []
    assert seen(clock_findings({"node-a": 0.4, "node-b": -0.9}, [])) == []
    assert seen(cluster_findings(CLUSTER)) == []
    assert seen(handler_findings([HANDLER])) == []


@pytest.mark.parametrize(
    ("facts", "nodes", "expected"),
    [
        (replace(GOOD, fsync=False), 1, ("critical", "fsync")),
        (replace(GOOD, full_page_writes=False), 1, ("critical", "full_page_writes")),
        (GOOD, 7, ("warning", "max_connections")),
        (replace(GOOD, standbys=1), 1, ("warning", "synchronous_standby_names")),
        (replace(GOOD, version=14), 1, ("warning", "server_version")),
        (replace(GOOD, role=[("jit", "on", "off")]), 1, ("warning", "jit")),
    ],
)
def test_settings_that_do_not_fit(facts: SettingFacts, nodes: int, expected: tuple[str, str]) -> None:
    assert seen(settings_findings(facts, nodes, 16)) == [expected]


def test_a_synchronous_standby_is_as_it_should_be() -> None:
    assert seen(settings_findings(replace(GOOD, standbys=1, synchronous_standbys=True), 1, 16)) == []


def test_the_schema() -> None:
    assert seen(schema_findings(6, 5, ["jobs_due"])) == [("info", ""), ("critical", "jobs_due")]


def test_plans_that_walk_tables_or_miss_the_due_index() -> None:
    good = PlanFacts(statement="claim", table="jobs_0000", whole=[], indexes=["due_0"])
    bad = PlanFacts(statement="claim", table="jobs_0001", whole=["jobs_0001"], indexes=["jobs_0001_pkey"])
    sweep = PlanFacts(statement="sweep", table="jobs_0001", whole=[], indexes=[])
    assert seen(plan_findings([good, bad, sweep])) == [("critical", "jobs_0001")]
    assert seen(due_index_findings([good, bad, sweep], frozenset({"due_0", "due_1"}))) == [("critical", "jobs_0001")]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (replace(TABLE, autovacuum=False), [("warning", "jobs_0000")]),
        (replace(TABLE, dead=50_000), [("warning", "jobs_0000")]),
        (replace(TABLE, dead=50_000, vacuumed_s=None), [("warning", "jobs_0000")]),
        (replace(TABLE, dead=50_000, live=60_000), []),
        (replace(TABLE, frozen_age=600_000_000), [("warning", "jobs_0000")]),
        (replace(TABLE, frozen_age=1_600_000_000), [("critical", "jobs_0000")]),
    ],
)
def test_the_upkeep_of_tables(table: TableFacts, expected: list[tuple[str, str]]) -> None:
    assert seen(upkeep_findings(True, [table])) == expected
    assert seen(upkeep_findings(False, [table])) == [("critical", ""), *expected]


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (Holder(kind=HolderKind.SESSION, what="bob pid 7", age=9, open_s=60.0), []),
        (Holder(kind=HolderKind.SESSION, what="bob pid 7", age=9, open_s=400.0), [("warning", "bob pid 7")]),
        (Holder(kind=HolderKind.PREPARED, what="gid", age=9, open_s=4000.0), [("critical", "gid")]),
        (Holder(kind=HolderKind.SLOT, what="s", age=3_000_000, open_s=None), [("warning", "slot s")]),
        (Holder(kind=HolderKind.STANDBY, what="s", age=3_000_000, open_s=None), [("warning", "standby s")]),
        (Holder(kind=HolderKind.SLOT, what="s", age=1000, open_s=None), []),
    ],
)
def test_what_keeps_dead_rows(holder: Holder, expected: list[tuple[str, str]]) -> None:
    assert seen(transaction_findings([holder], sees_sessions=True)) == expected
    assert seen(transaction_findings([holder], sees_sessions=False)) == [*expected, ("info", "")]


@pytest.mark.parametrize(
    ("ahead_s", "expected"), [(2.0, "info"), (-2.0, "info"), (31.0, "warning"), (-4000.0, "warning")]
)
def test_clocks(ahead_s: float, expected: str) -> None:
    [finding] = clock_findings({"node-a": ahead_s, "node-b": 0.0}, [])
    assert (finding.severity.name.lower(), finding.subject) == (expected, "node node-a")
    assert ("ahead of" in finding.summary) == (ahead_s > 0)


def test_nodes_that_do_not_answer_each_other() -> None:
    assert seen(clock_findings({"node-a": 0.0}, ["node-b"])) == [("warning", "node node-b")]


def test_days_that_are_missing_left_over_or_loose() -> None:
    missing = replace(HISTORY, days=DAYS - {TODAY + timedelta(days=2)})
    assert seen(day_findings([missing])) == [("warning", "job_history_completed")]
    assert seen(day_findings([replace(HISTORY, days=DAYS - {TODAY + timedelta(days=4)})])) == []
    kept = replace(HISTORY, days=DAYS | {TODAY - timedelta(days=9)})
    assert seen(day_findings([kept])) == []
    left = replace(HISTORY, days=DAYS | {TODAY - timedelta(days=10)})
    assert seen(day_findings([left])) == [("warning", "job_history_completed")]
    assert seen(day_findings([replace(HISTORY, loose=["attempts_20260101"])])) == [("warning", "attempts_20260101")]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (replace(CLUSTER, leader=""), [("critical", "")]),
        (replace(CLUSTER, trouble="no answer"), [("warning", "coordinator")]),
        (replace(CLUSTER, nodes=[("node-a", "up"), ("node-b", "gone")]), [("critical", "node node-b")]),
        (replace(CLUSTER, nodes=[("node-a", "up"), ("node-b", "unhealthy")]), [("warning", "node node-b")]),
        (replace(CLUSTER, nodes=[("node-a", "up"), ("node-b", "drained")]), [("info", "node node-b")]),
        (replace(CLUSTER, shard_count=8), [("info", "shards")]),
        (replace(CLUSTER, paused=True), [("info", "")]),
    ],
)
def test_nodes_and_orders(facts: ClusterFacts, expected: list[tuple[str, str]]) -> None:
    assert seen(cluster_findings(facts)) == expected


@pytest.mark.parametrize(
    ("state", "for_s", "expected"),
    [("unowned", 5.0, "info"), ("unowned", 31.0, "critical"), ("moving", 31.0, "warning"), ("unplanned", None, "info")],
)
def test_shards_that_are_stuck(state: str, for_s: float | None, expected: str) -> None:
    shard = ShardFacts(shard=3, state=state, waiting_for="node-b to take it", for_s=for_s)
    assert seen(cluster_findings(replace(CLUSTER, shards=[shard]))) == [(expected, "shard 3")]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (replace(HANDLER, workers=0, slots=0), Severity.WARNING),
        (replace(HANDLER, workers=0, slots=0, waited_s=61.0), Severity.CRITICAL),
        (replace(HANDLER, waited_s=601.0), Severity.WARNING),
        (replace(HANDLER, waited_s=601.0, paused=True), Severity.INFO),
    ],
)
def test_handlers_whose_jobs_wait(handler: HandlerFacts, expected: Severity) -> None:
    [finding] = handler_findings([handler])
    assert (finding.severity, finding.subject) == (expected, "default/h")


def test_what_to_do_depends_on_whether_slots_are_free() -> None:
    [busy] = handler_findings([replace(HANDLER, waited_s=601.0)])
    [free] = handler_findings([replace(HANDLER, waited_s=601.0, running=3)])
    assert "more workers" in busy.remedy
    assert "concurrency key" in free.remedy
