"""The audit sees who does what to a shard that is not its own, whatever statement does it."""

from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from server.store.claim import CLAIM
from tests.cluster import audit
from tests.cluster.addresses import PROCESS_SETTING
from tests.cluster.history import EpochRaise

SHARD = 0
_RAISE: LiteralString = "UPDATE shards SET epoch = epoch + 1, owner = %s, owner_incarnation = %s WHERE shard = %s"
_JOB: LiteralString = """
INSERT INTO {} (id, due_at, shard, handler_id, namespace_id, max_attempts, retry_initial_ms, retry_max_ms,
    retry_multiplier, payload, schedule_id, scheduled_for)
VALUES (%s, now(), %s, 1, 1, 3, 100, 100, 2, '', %s, now())
"""


class Process:
    """Somebody with a connection of its own."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self.connection = psycopg.connect(dsn, autocommit=True, options=f"-c {PROCESS_SETTING}={name}")

    def do(self, statement: LiteralString | bytes, *parameters: object) -> None:
        self.connection.execute(statement, parameters)

    def own(self) -> None:
        self.do(_RAISE, self.name, 1, SHARD)

    def claim(self, job: int, epoch: int) -> None:
        statement = (
            "UPDATE jobs_0000 SET claim = claim + 1, open_claim = claim + 1, claim_epoch = %s, state = 1,"
            " worker_id = 1, started_at = now() WHERE id = %s"
        )
        self.do(statement, epoch, job)


@pytest.fixture
def processes(database: str) -> Iterator[tuple[str, Process, Process]]:
    audit.install(database)
    one, other = Process(database, "node-1.1"), Process(database, "node-2.1")
    one.do("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h')")
    yield database, one, other
    for process in (one, other):
        process.connection.close()


def job_id(number: int) -> int:
    return number << 12 | SHARD


def insert(process: Process, number: int, *, table: str = "jobs", schedule: int | None = None) -> int:
    statement = psycopg.sql.SQL(_JOB).format(psycopg.sql.Identifier(table))
    process.connection.execute(statement, (job_id(number), SHARD, schedule))
    return job_id(number)


def trespasses(dsn: str) -> list[tuple[str, int, int | None, str, str | None]]:
    return [(one.deed, one.epoch, one.used, one.process, one.owner) for one in audit.read_trespasses(dsn)]


def test_raises_are_written_down(processes: tuple[str, Process, Process]) -> None:
    dsn, one, other = processes
    one.own()
    other.own()
    one.do("UPDATE shards SET owner = NULL WHERE shard = %s", SHARD)
    assert audit.read_raises(dsn) == (
        EpochRaise(SHARD, 0, 1, one.name, one.name, 1),
        EpochRaise(SHARD, 1, 2, other.name, other.name, 1),
    )


def test_what_an_owner_does_is_no_trespass(processes: tuple[str, Process, Process]) -> None:
    dsn, one, _ = processes
    one.own()
    job = insert(one, 1, schedule=9)
    one.claim(job, 1)
    one.do("INSERT INTO attempts VALUES (%s, 1, 1, 1, now(), now(), 3, '', '')", job)
    audit.litter(dsn, 1.0)
    one.do("DELETE FROM dedupe_keys_0000 WHERE shard = %s", SHARD)
    assert trespasses(dsn) == []


@pytest.mark.parametrize("table", ["jobs", "jobs_0000"])
def test_a_claim_under_an_older_epoch(processes: tuple[str, Process, Process], table: str) -> None:
    dsn, one, other = processes
    one.own()
    job = insert(one, 1, table=table)
    other.own()
    one.claim(job, 1)
    assert trespasses(dsn) == [("claim", 2, 1, one.name, other.name)]


def test_deeds_of_somebody_else(processes: tuple[str, Process, Process]) -> None:
    dsn, one, other = processes
    one.own()
    job = insert(one, 1)
    insert(other, 2, schedule=9, table="jobs_0000")
    other.claim(job, 1)
    # Only the last of these ends is the reaper's alone.
    for outcome in (1, 2, 3):
        other.do("INSERT INTO attempts VALUES (%s, 1, 1, 1, now(), now(), %s, '', '')", job, outcome)
    audit.litter(dsn, 1.0)
    other.do("DELETE FROM dedupe_keys_0000 WHERE shard = %s", SHARD)
    assert trespasses(dsn) == [
        ("fire", 1, None, other.name, one.name),
        ("claim", 1, 1, other.name, one.name),
        ("reap", 1, None, other.name, one.name),
        ("clean", 1, None, other.name, one.name),
    ]


def test_a_reap_is_written_down_with_the_lease_of_its_time(processes: tuple[str, Process, Process]) -> None:
    dsn, one, _ = processes
    one.own()
    job = insert(one, 1)
    one.do(
        "INSERT INTO workers (id, namespace_id, name, incarnation, lease_until) OVERRIDING SYSTEM VALUE"
        " VALUES (1, 1, 'w', 1, '2026-01-01T00:00:00Z')"
    )
    for outcome in (1, 3):
        one.do("INSERT INTO attempts VALUES (%s, %s, 1, 1, now(), now(), %s, '', '')", job, outcome, outcome)
    [text] = audit.read_reaps(dsn, [job])
    assert text.startswith(f"job {job}, claim 3: reaped by {one.name} at ")
    assert "the lease of w was until 2026-01-01" in text


def test_an_audit_that_sleeps_is_an_error(processes: tuple[str, Process, Process]) -> None:
    dsn, one, _ = processes
    one.do("DROP TRIGGER audit_cleaned ON dedupe_keys")
    with pytest.raises(AssertionError, match="does not see"):
        audit.read_trespasses(dsn)


def test_partitions_have_the_names_that_this_file_assumes() -> None:
    assert b"jobs_0000" in CLAIM.on(0)
