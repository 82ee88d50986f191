"""How histories are read from journals."""

from pathlib import Path

import pytest

from tests.cluster.evidence import (
    executions_of,
    read_executions,
    read_lives,
    read_strikes,
    read_submissions,
    running_throughout,
)
from tests.cluster.journal import Journal, read_lines
from tests.cluster.nemeses.processes import STOP_WORKER
from tests.cluster.worker_program import COMPLETED
from tests.unit.cluster.histories import execution


def start(journal: Journal, job: int, claim: int = 1, pid: int = 7) -> None:
    journal.write(
        "start", job=job, claim=claim, attempt=1, handler="h", worker="w", pid=pid, claimed_at=1_800_000_000.25
    )


def end(journal: Journal, job: int, claim: int = 1, pid: int = 7, outcome: str = COMPLETED) -> None:
    journal.write("end", job=job, claim=claim, worker="w", pid=pid, outcome=outcome)


def test_starts_and_ends_belong_together(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    start(journal, 1)
    start(journal, 2)
    end(journal, 2, outcome="Flaky")
    start(journal, 2, claim=2)
    end(journal, 1)
    found = read_executions([journal.path, tmp_path / "missing"])
    assert [(one.job, one.claim, one.outcome, one.ended is None) for one in found] == [
        (1, 1, COMPLETED, False),
        (2, 1, "Flaky", False),
        (2, 2, "", True),
    ]
    assert found[0].claimed_at == 1_800_000_000.25
    assert found[0].started.mono <= found[1].started.mono


def test_a_claim_that_runs_in_two_processes_is_two_executions(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    start(journal, 1, pid=7)
    start(journal, 1, pid=8)
    end(journal, 1, pid=8)
    assert [(one.pid, one.outcome) for one in read_executions([journal.path])] == [(7, ""), (8, COMPLETED)]


def test_an_end_without_a_start_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    end(journal, 1)
    with pytest.raises(ValueError, match="has not begun"):
        executions_of(read_lines(journal.path))


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    start(journal, 1)
    with journal.path.open("ab") as file:
        file.write(b'{"event":"end","jo')
    assert len(list(read_lines(journal.path))) == 1


def test_what_is_durable_is_in_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    for job in range(100):
        start(journal, job)
    journal.durable().result(5)
    assert len(list(read_lines(journal.path))) == 100


def test_lives(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "processes")

    def note(event: str, pid: int, process: str = "worker-1") -> None:
        journal.write(event, kind="worker", process=process, pid=pid)

    note("started", 7)
    note("started", 8, "worker-2")
    note("paused", 7)
    note("resumed", 7)
    note("resumed", 8, "worker-2")
    note("paused", 7)
    note("killed", 7)
    note("started", 9)
    note("terminated", 9)
    note("gone", 9)
    journal.write("strike", fault="stop_worker", process="worker-1")
    first, second, third = read_lives(journal.path)
    assert (first.pid, first.terminated, first.gone, len(first.stops)) == (7, None, None, 2)
    assert first.killed is not None
    assert [stop.ended is None for stop in first.stops] == [False, True]
    assert (second.pid, second.process, second.stops) == (8, "worker-2", ())
    assert (third.pid, third.killed) == (9, None)
    assert third.terminated is not None
    assert third.gone is not None
    [strike] = read_strikes(journal.path)
    assert (strike.fault, strike.victim) == (STOP_WORKER, "worker-1")


def test_submissions(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "client")
    journal.write(
        "sent", name="a", handler="h", due_at=None, dedupe_key="a", concurrency_key="k", concurrency_limit=2,
        timeout_s=1.5, failures=1,
    )  # fmt: skip
    journal.write("refused", name="a", error="away")
    journal.write("answered", name="a", job=5, created=True, differs=False)
    [wanted], [got] = read_submissions(journal.path)
    assert (wanted.name, wanted.due_at, wanted.concurrency_limit, wanted.timeout_s) == ("a", None, 2, 1.5)
    assert (got.name, got.job, got.created, got.differs) == ("a", 5, True, False)


def test_executions_that_last_through_an_outage() -> None:
    through, began_late, ended_early = execution(end=9.0), execution(start=3.0, end=9.0), execution(end=4.0)
    still = execution(end=None)
    every = [through, began_late, ended_early, still]
    assert running_throughout(every, began=2.0, ended=5.0) == [through]


def test_a_process_that_is_stopped_twice_goes_on_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "processes")
    for event in ("started", "paused", "paused", "resumed", "resumed"):
        journal.write(event, kind="worker", process="w", pid=7)
    [life] = read_lives(journal.path)
    [stop] = life.stops
    assert stop.ended is not None
