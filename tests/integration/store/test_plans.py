"""What the hot statements touch and walk, under generic plans, whatever the statistics say.

Each is run on a filled database: it may lock the named partition only, walk only rows that are due or asked for, and
read few blocks of an index, which a walk over entries that a condition inside the index sorts out would not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from server.domain.due import NO_BOUND, Probe
from server.domain.ending import ANY_LEASE, Recheck
from server.domain.job import AttemptOutcome, AttemptRef, JobState, NewJob
from server.domain.outcome import Finish, Requeue
from server.store import claim, finish, insert, reap, shards, workers
from server.store.arrays import ByteaArray, InstantArray, Int4Array, Int8Array, TextArray
from server.store.database import Database
from server.store.insert import PlacedJob
from server.store.start import start
from tests.integration.store.filled import (
    DUE_PER_PROBE,
    EPOCHS,
    EXPIRED,
    LOST_WORKER,
    OLD_KEYS,
    OVERDUE,
    PARTITION,
    RUNNING_OF_LOST,
    SHARDS,
    Filled,
    filled,
    ids,
)
from tests.integration.store.plans import Explained, Sent, explain, sent_by
from tests.support.postgres import oldest_and_newest

PARTITION_OF = [shard // 4 for shard in range(64)]
NO_BOUNDS = (NO_BOUND,) * 5
HISTORY = frozenset({"job_history", "job_history_completed", "job_history_unsuccessful", "attempts"})
FREE_FOR_ALL = frozenset({"shards", "workers", "handlers"})

RUNNING = [AttemptRef(one, 3) for one in ids(200_000, range(101, 121))]
OVER = [AttemptRef(one, 3) for one in ids(200_000, range(1, OVERDUE + 1))]
LOST = [AttemptRef(one, 3) for one in ids(200_000, range(LOST_WORKER - 1, 2000, 40))]


def probes(slots: int, handlers: tuple[int, ...] = (1, 2, 3)) -> list[Probe]:
    return [Probe(shard, handler, [1] * slots, NO_BOUNDS) for shard in SHARDS for handler in handlers]


def finishes(refs: list[AttemptRef]) -> list[Finish]:
    failed = AttemptOutcome.FAILED
    return [
        Finish(ref=ref, state=JobState.FAILED, error_type="E", message="m", outcome=failed)
        if number % 2
        else Finish(ref=ref, state=JobState.COMPLETED, result=b"r", content_type="t")
        for number, ref in enumerate(refs)
    ]


def requeues(refs: list[AttemptRef]) -> list[Requeue]:
    delay, failed = timedelta(seconds=5), AttemptOutcome.FAILED
    return [Requeue(ref=ref, delay=delay, burn=True, error_type="E", message="m", outcome=failed) for ref in refs]


def new_jobs(count: int, **changes: Any) -> list[PlacedJob]:
    job = NewJob(namespace_id=1, handler_id=1, payload=b"x", **changes)
    return [PlacedJob((600_000 + n) << 12 | 12, job) for n in range(count)]


def key_arrays(keys: list[str], first_id: int) -> tuple[object, ...]:
    every = range(len(keys))
    return (
        Int8Array([(first_id + n) << 12 | (12 + (n + 1) % 4) for n in every]),
        Int4Array([1 for _ in every]),
        Int4Array([1 for _ in every]),
        TextArray(["" for _ in every]),
        TextArray(keys),
    )


def inserts() -> Sent:
    return sent_by(lambda database: insert.insert_jobs(database, PARTITION_OF, new_jobs(20)))


def take_keys() -> Sent:
    keys = [f"key{n}" for n in range(1, 11)]
    more = (
        ByteaArray([b"h"] * 10),
        Int8Array([600_000] * 10),
        InstantArray([None] * 10),
        Int8Array([0] * 10),
    )
    return Sent(insert.TAKE_KEYS.on(PARTITION).decode(), (*key_arrays(keys, 700_000), *more))


def read_keys() -> Sent:
    keys = [f"key{n}" for n in range(1, 11)]
    return Sent(insert.READ_KEYS.on(PARTITION).decode(), key_arrays(keys, 700_000))


def fenced_finish(recheck: Recheck, refs: list[AttemptRef]) -> Callable[[Database], Any]:
    grace = timedelta(seconds=1)
    return lambda database: finish.fenced_finish(database, PARTITION, EPOCHS, finishes(refs), recheck, grace)


def fenced_requeue(recheck: Recheck, refs: list[AttemptRef]) -> Callable[[Database], Any]:
    grace = timedelta(seconds=1)
    return lambda database: finish.fenced_requeue(database, PARTITION, EPOCHS, requeues(refs), recheck, grace)


@dataclass(frozen=True, slots=True)
class Case:
    """A statement, the rows of jobs, keys and workers it may walk, and where it may write history."""

    name: str
    sent: Callable[[], Sent]
    walks: int
    writes: frozenset[str] = frozenset()
    answers: int | None = None
    """Rows that the statement changes or returns, if they are fixed."""


NOW = timedelta(0)
MINUTE = timedelta(minutes=1)


def case(name: str, call: Callable[[Database], Any], walks: int, **more: Any) -> Case:
    return Case(name, lambda: sent_by(call), walks, **more)


P = PARTITION
ALL_SHARDS = list(SHARDS)
COMPLETED_AND_FAILED = frozenset({"job_history_completed", "job_history_unsuccessful", "attempts"})
ATTEMPTS = frozenset({"attempts"})
GROUPS = len(SHARDS) * 4 * 5

CASES = [
    # One step of the walk for each (shard, handler, priority) that exists.
    case("SWEEP", lambda d: claim.sweep(d, P), GROUPS, answers=GROUPS),
    # A peek reads as many rows as it is asked for, due or not.
    case("PEEK", lambda d: claim.peek(d, P, [(s, h, NO_BOUNDS) for s in SHARDS for h in (1, 2, 3)], 2), 120),
    # Twelve probes of one slot; expired rows of handler 2 stand in front of its due ones. Found, then updated by id.
    case("CLAIM", lambda d: claim.claim(d, P, EPOCHS, probes(1)), 12 + EXPIRED + 12),
    case("CLAIM all", lambda d: claim.claim(d, P, EPOCHS, probes(100)), 2 * 3 * 4 * 5 * DUE_PER_PROBE + EXPIRED),
    # Of the 20 due of each (shard, handler), one is taken; the rest is looked at for keyed ones to park.
    case("CLAIM past full keys", lambda d: claim.claim(d, P, EPOCHS, probes(1), look_past=500), 240 + EXPIRED + 12),
    case("CLAIM paused", lambda d: claim.claim(d, P, EPOCHS, probes(1, (4,))), 0),
    case("CLAIM nothing due", lambda d: claim.claim(d, P, EPOCHS, [Probe(12, 99, [1], NO_BOUNDS)]), 0),
    case("CLAIM fenced", lambda d: claim.claim(d, P, [(s, 6) for s in SHARDS], probes(1)), 0, answers=0),
    Case("INSERT", inserts, 0, answers=20),
    # Of the ten keys all are due to be cleaned, and their jobs still live.
    Case("TAKE_KEYS", take_keys, 10),
    Case("READ_KEYS", read_keys, 10),
    case("FINISH", lambda d: finish.finish(d, P, finishes(RUNNING)), 40, writes=COMPLETED_AND_FAILED, answers=20),
    case("REQUEUE", lambda d: finish.requeue(d, P, requeues(RUNNING)), 40, writes=ATTEMPTS, answers=20),
    case("FENCED_FINISH open", fenced_finish(Recheck.OPEN, RUNNING), 40, writes=COMPLETED_AND_FAILED),
    case("FENCED_FINISH lost", fenced_finish(Recheck.WORKER_LOST, LOST), 150, writes=COMPLETED_AND_FAILED),
    case("FENCED_FINISH late", fenced_finish(Recheck.TIMED_OUT, OVER), 16, writes=COMPLETED_AND_FAILED),
    case("FENCED_REQUEUE open", fenced_requeue(Recheck.OPEN, RUNNING), 40, writes=ATTEMPTS),
    case("FENCED_REQUEUE lost", fenced_requeue(Recheck.WORKER_LOST, LOST), 150, writes=ATTEMPTS),
    case("FENCED_REQUEUE late", fenced_requeue(Recheck.TIMED_OUT, OVER), 16, writes=ATTEMPTS),
    case("LOAD_FACTS", lambda d: finish.load_facts(d, P, RUNNING), 20, answers=20),
    case("STILL_THERE", lambda d: finish.still_there(d, P, [ref.job_id for ref in RUNNING]), 20, answers=20),
    case("RUNNING", lambda d: reap.load_running(d, P, 12), 500, answers=500),
    case("OF_SHARDS", lambda d: reap.running_of_shards(d, P, ALL_SHARDS), 4 * 500, answers=4 * 500),
    case("OF_WORKERS", lambda d: reap.running_of_workers(d, P, ALL_SHARDS, [LOST_WORKER]), RUNNING_OF_LOST),
    case("OVERDUE", lambda d: reap.overdue(d, P, ALL_SHARDS), OVERDUE, answers=OVERDUE),
    case("EXPIRE", lambda d: reap.expire(d, P, EPOCHS), 2 * EXPIRED, writes=frozenset({"job_history_unsuccessful"})),
    case("UNPARK", lambda d: reap.unpark(d, P, EPOCHS, [(12, 1, "full1", 1), (12, 1, "room500", 1)]), 4),
    # One parked head and one running row for each of the twenty keys.
    case("PARKED_WITH_ROOM", lambda d: reap.parked_with_room(d, P), 20 + 10, answers=20),
    # Keys, their jobs, and the keys once more to change them.
    case("CLEAN_KEYS", lambda d: reap.clean_keys(d, P, EPOCHS), 3 * OLD_KEYS),
    case("ATTENTION", lambda d: reap.attention(d, P, ALL_SHARDS), 3, answers=1),
    case("SAVE_PROGRESS", lambda d: reap.save_progress(d, P, 22, [(ref, b"p") for ref in RUNNING]), 40),
    case("RENEW", lambda d: workers.renew(d, dict.fromkeys([1, 2, 4, 5], NOW), MINUTE, NOW), 12, answers=1),
    case("ADMIT", lambda d: workers.admit(d, 1, "w7", 1, "", b"{}", MINUTE, alone=True), 8, answers=1),
    case("DOUBT", lambda d: workers.doubt(d, [1, 2, 4, 5]), 8),
    case("LOSE", lambda d: workers.lose(d, [1, 2, 4, 5], NOW), 12, answers=1),
    case("DEAD", lambda d: workers.dead(d, [1, 2, 3, 4], as_of=ANY_LEASE), 4, answers=1),
    case("FENCE_IN", lambda d: shards.fence_in(d, [(12, 1, 101), (13, 1, 99)], "node-2", 2), 0, answers=1),
    case("BUMP", lambda d: shards.bump(d, 12, 7, 1), 0, answers=1),
]


# Groups of submits may span partitions. These lock them all, but look only into those that their ids name: one here.
ON_ALL = [
    Case("INSERT", lambda: Sent(insert.INSERT.on_all().decode(), inserts().params), 0, answers=20),
    Case("TAKE_KEYS", lambda: Sent(insert.TAKE_KEYS.on_all().decode(), take_keys().params), 10),
    Case("READ_KEYS", lambda: Sent(insert.READ_KEYS.on_all().decode(), read_keys().params), 10, answers=10),
    # The worker, the rows that its refs name, and the one that is its own once more.
    case("START", lambda d: start(d, 1, "w22", 1, [(ref, True) for ref in RUNNING]), 1 + 20 + 1, answers=1),
]


@pytest.fixture(scope="module", params=oldest_and_newest(), ids=lambda one: f"postgres{one.major}")
def databases(request: pytest.FixtureRequest) -> Iterator[Filled]:
    with filled(request.param) as made:
        yield made


@pytest.fixture(scope="module", params=["stale", "analyzed"])
def connection(request: pytest.FixtureRequest, databases: Filled) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(getattr(databases, request.param), autocommit=True) as connected:
        yield connected


def today(connection: psycopg.Connection[Any]) -> str:
    [(day,)] = connection.execute("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").fetchall()
    return str(day)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_statement_touches_and_walks_little(connection: psycopg.Connection[Any], one: Case) -> None:
    done = explain(connection, one.sent())
    assert done.generic
    check_touched(done, {f"{parent}_{today(connection)}" for parent in one.writes})
    check_walked(done, one.walks)
    if one.answers is not None:
        assert done.plan["Actual Rows"] * done.plan["Actual Loops"] == one.answers


@pytest.mark.parametrize("one", ON_ALL, ids=lambda one: one.name)
def test_statement_over_all_partitions_looks_into_those_it_names(
    connection: psycopg.Connection[Any], one: Case
) -> None:
    done = explain(connection, one.sent())
    assert done.generic
    looked_into = {scan.relation for scan in done.scans if scan.loops}
    assert looked_into <= {f"jobs_{PARTITION:04d}", f"dedupe_keys_{PARTITION:04d}"} | FREE_FOR_ALL
    check_walked(done, one.walks)
    if one.answers is not None:
        assert done.plan["Actual Rows"] * done.plan["Actual Loops"] == one.answers


def check_touched(done: Explained, leaves: set[str]) -> None:
    """Only the partition's own tables, tables without partitions, and the day's leaves of the history."""
    own = {f"jobs_{PARTITION:04d}", f"dedupe_keys_{PARTITION:04d}"}
    allowed = own | FREE_FOR_ALL | (HISTORY if leaves else set()) | leaves
    # A change of a leaf looks up the bounds of its parent, which concerns no other leaf.
    touched = done.locked - {"jobs", "dedupe_keys"}
    foreign = {name for name in touched if not any(name == one or name.startswith(f"{one}_") for one in allowed)}
    # A leaf of another day would have passed as "job_history_…".
    days = {
        name for name in done.locked for parent in HISTORY if name.startswith(f"{parent}_2") and name[-8:].isdigit()
    }
    assert not foreign
    assert days == leaves


def check_walked(done: Explained, limit: int) -> None:
    big = [scan for scan in done.scans if scan.relation.startswith(("jobs", "dedupe", "workers"))]
    assert not [scan for scan in done.scans if "Index" not in scan.kind]
    walked = sum(scan.walked for scan in big)
    rounding = sum(scan.loops for scan in big if scan.loops > 1) / 2
    assert walked <= limit + rounding, big
    for scan in big:
        assert scan.blocks <= 10 + 5 * scan.loops + 3 * scan.walked, scan


def test_claim_takes_priorities_in_order(connection: psycopg.Connection[Any]) -> None:
    sent = sent_by(lambda database: claim.claim(database, PARTITION, EPOCHS, [Probe(13, 1, [5] * 10, NO_BOUNDS)]))
    taken: list[tuple[int, datetime]] = []

    def read(inside: psycopg.Connection[Any]) -> None:
        statement = "SELECT priority, due_at FROM jobs_0003 WHERE worker_id = 5 AND claim = 1 ORDER BY 1, 2"
        taken.extend(inside.execute(statement).fetchall())

    done = explain(connection, sent, after=read)
    assert [priority for priority, _ in taken] == [1] * DUE_PER_PROBE + [2] * DUE_PER_PROBE + [3] * 2
    statement = """SELECT due_at FROM jobs_0003
        WHERE state = 0 AND shard = 13 AND handler_id = 1 AND priority = 3 ORDER BY due_at LIMIT 2"""
    assert [due for _, due in taken[-2:]] == [due for (due,) in connection.execute(statement).fetchall()]
    probing = [
        (node, ancestors)
        for node, ancestors in done.nodes()
        if node.get("Index Name", "").endswith("shard_handler_id_priority_due_at_id_idx")
    ]
    assert len(probing) == 1
    [(_, ancestors)] = probing
    kinds = [one["Node Type"] for one in ancestors]
    # What keeps the order: a nested loop over the five priorities, with nothing above it before the limit.
    assert kinds[-5:] == ["Limit", "Nested Loop", "Subquery Scan", "Limit", "LockRows"]
    assert ancestors[-4]["Plans"][0]["Node Type"] == "Values Scan"


def test_claim_starts_from_its_lower_bounds(connection: psycopg.Connection[Any]) -> None:
    [(bound,)] = connection.execute(
        "SELECT due_at FROM jobs_0003 WHERE state = 0 AND shard = 13 AND handler_id = 1 AND priority = 1 "
        "ORDER BY due_at DESC OFFSET (SELECT count(*) - 2 FROM jobs_0003 WHERE state = 0 AND shard = 13 "
        "AND handler_id = 1 AND priority = 1) LIMIT 1"
    ).fetchall()
    future = datetime(2100, 1, 1, tzinfo=UTC)
    probe = Probe(13, 1, [1] * 50, (bound, future, future, future, future))
    done = explain(connection, sent_by(lambda database: claim.claim(database, PARTITION, EPOCHS, [probe])))
    # Three of the four due rows of priority 1 lie at or after the bound.
    [scan] = [scan for scan in done.scans if scan.index is not None and scan.index.endswith("due_at_id_idx")]
    assert scan.walked <= 3 + scan.loops / 2


BAD = {
    # A volatile clock is no condition of an index.
    "walks future rows": "SELECT x.id FROM jobs_0003 x WHERE x.state = 0 AND x.shard = 12 AND x.handler_id = 1 "
    "AND x.priority = 3 AND x.due_at <= clock_timestamp() ORDER BY x.due_at, x.id LIMIT 10",
    # Without the priority, the due time is compared inside the index, on every entry of the handler.
    "walks inside the index": "SELECT count(*) FROM jobs_0003 x WHERE x.state = 0 AND x.shard = 12 "
    "AND x.handler_id = 1 AND x.due_at <= now() - interval '1 day'",
    "reads the table": "SELECT x.id FROM jobs_0003 x WHERE x.name = 'x'",
}


@pytest.mark.parametrize("query", BAD.values(), ids=BAD)
def test_a_bad_walk_is_noticed(connection: psycopg.Connection[Any], query: str) -> None:
    done = explain(connection, Sent(query, ()))
    with pytest.raises(AssertionError):
        check_walked(done, 60)


def test_a_foreign_partition_is_noticed(connection: psycopg.Connection[Any]) -> None:
    done = explain(connection, Sent("SELECT x.id FROM jobs x WHERE x.id = %s::int8", [12]))
    with pytest.raises(AssertionError):
        check_touched(done, set())
