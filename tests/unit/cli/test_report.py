"""The account of a demo, from lines of logs to numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from server.demo.execution_log import COMPLETED, End, Start
from server.demo.follower import Follower
from server.demo.report import Killing, Phase, Report, SubmittedJob, TakeOver, account, percentile
from server.demo.settings import DemoSettings, Kill
from server.demo.tally import Tally
from server.domain.errors import InvalidInput
from server.domain.sharding import make_id

KILLED_AT = 1000.0
KILLING = Killing(kind=Kill.WORKER, name="w1", at=KILLED_AT, gone_at=KILLED_AT + 0.01)


def start(tally: Tally, job: int, at: float, *, claim: int = 1, worker: str = "w1", claimed_at: float = 0.0) -> None:
    tally.add(Start(job=job, claim=claim, attempt=1, worker=worker, claimed_at=claimed_at or at, started_at=at))


def end(tally: Tally, job: int, at: float, *, claim: int = 1, worker: str = "w1", outcome: str = COMPLETED) -> None:
    tally.add(End(job=job, claim=claim, worker=worker, ended_at=at, outcome=outcome))


def submitted(*jobs: int, phase: Phase = Phase.BURST, due_at: float | None = None) -> dict[int, SubmittedJob]:
    return {job: SubmittedJob(phase=phase, submitted_at=100.0, due_at=due_at) for job in jobs}


def report(
    jobs: dict[int, SubmittedJob],
    tally: Tally,
    killing: Killing | None = None,
    *,
    all_final: bool = True,
    take_over: TakeOver | None = None,
) -> Report:
    return account(
        coordinator="postgres",
        jobs=jobs,
        tally=tally,
        killing=killing,
        failed=0,
        all_final=all_final,
        take_over=take_over,
    )


def test_all_is_well() -> None:
    tally = Tally()
    for job in (1, 2):
        start(tally, job, 101.0)
        end(tally, job, 102.0)
    found = report(submitted(1, 2), tally)
    assert found.good
    assert found.as_json() == {
        "coordinator": "postgres",
        "submitted": 2,
        "completed": 2,
        "failed": 0,
        "lost": 0,
        "duplicates": 0,
        "early": 0,
        "jobs_per_s": 1.0,
        "start_ms_p50": None,
        "start_ms_p99": None,
        "killed": "none",
        "recovered_ms": None,
        "moved_shards": 0,
    }


def test_a_job_without_a_completed_execution_is_lost() -> None:
    tally = Tally()
    start(tally, 1, 101.0)
    end(tally, 1, 102.0, outcome="CancelledError")
    start(tally, 2, 101.0)
    found = report(submitted(1, 2, 3), tally)
    assert (found.completed, found.lost, found.good) == (0, 3, False)


def test_a_job_that_is_not_final_is_not_good_even_if_it_has_run() -> None:
    tally = Tally()
    start(tally, 1, 101.0)
    end(tally, 1, 102.0)
    assert not report(submitted(1), tally, all_final=False).good


@pytest.mark.parametrize(("claimed_at", "started_at"), [(499.9, 500.1), (500.1, 499.9)])
def test_claimed_or_started_before_the_due_time_is_early(claimed_at: float, started_at: float) -> None:
    tally = Tally()
    start(tally, 1, started_at, claimed_at=claimed_at)
    end(tally, 1, 501.0)
    start(tally, 2, 500.0, claimed_at=500.0)
    end(tally, 2, 501.0)
    found = report(submitted(1, 2, due_at=500.0), tally)
    assert (found.early, found.good) == (1, False)


def test_what_the_killed_worker_was_running_is_an_expected_duplicate() -> None:
    tally = Tally()
    # Running at the kill, begun while the signal was under way; ended just before it, with the result under way; not of
    # the killed worker.
    start(tally, 1, KILLED_AT + 0.005)
    start(tally, 2, KILLED_AT - 0.1)
    end(tally, 2, KILLED_AT - 0.05)
    start(tally, 3, KILLED_AT - 0.1, worker="w2")
    end(tally, 3, KILLED_AT - 0.05, worker="w2")
    for job in (1, 2, 3):
        start(tally, job, KILLED_AT + 5 + job, claim=2, worker="w2")
        end(tally, job, KILLED_AT + 6 + job, claim=2, worker="w2")
    found = report(submitted(1, 2, 3), tally, KILLING)
    assert (found.duplicates, found.expected_duplicates, found.lost) == (3, 2, 0)
    assert found.rerun_ms == 8000.0
    assert found.recovered_ms == 7000.0


def test_other_duplicates_are_not_explained_by_the_kill() -> None:
    tally = Tally()
    # Finished long before the kill; run again before it; run three times; dispatched twice under one claim.
    start(tally, 1, KILLED_AT - 50)
    end(tally, 1, KILLED_AT - 49)
    start(tally, 1, KILLED_AT + 5, claim=2, worker="w2")
    start(tally, 2, KILLED_AT - 2)
    start(tally, 2, KILLED_AT - 1, claim=2, worker="w2")
    for claim in (1, 2, 3):
        start(tally, 3, KILLED_AT - 1 + claim, claim=claim)
    start(tally, 4, KILLED_AT - 1)
    start(tally, 4, KILLED_AT - 1)
    found = report(submitted(1, 2, 3, 4), tally, KILLING)
    assert (found.duplicates, found.expected_duplicates) == (5, 0)


def test_the_kill_of_a_node_explains_no_duplicate() -> None:
    tally = Tally()
    start(tally, 1, KILLED_AT - 0.1)
    start(tally, 1, KILLED_AT + 5, claim=2, worker="w2")
    found = report(submitted(1), tally, Killing(kind=Kill.NODE, name="node-1", at=KILLED_AT, gone_at=KILLED_AT))
    assert (found.duplicates, found.expected_duplicates) == (1, 0)


def test_a_killed_node_is_recovered_when_its_last_shard_is_served_again() -> None:
    killing = Killing(kind=Kill.NODE, name="node-1", at=KILLED_AT, gone_at=KILLED_AT)
    tally = Tally()
    # Of a shard of the node: running at the kill, run twice, ended before, begun after. Of another: running.
    ran_on, twice, before, after, elsewhere = make_id(1, 7), make_id(2, 7), make_id(3, 7), make_id(4, 7), make_id(5, 8)
    for job, at in ((ran_on, -1), (twice, -1), (before, -2), (after, 1), (elsewhere, -1)):
        start(tally, job, KILLED_AT + at)
        end(tally, job, KILLED_AT + at + (1 if job == before else 4) - 0.5)
    start(tally, twice, KILLED_AT + 5, claim=2, worker="w2")
    end(tally, twice, KILLED_AT + 6, claim=2, worker="w2")
    jobs = submitted(ran_on, twice, before, after, elsewhere)
    found = report(jobs, tally, killing, take_over=TakeOver(orphans={7, 9}, moved=2, recovered_at=KILLED_AT + 0.9))
    assert (found.recovered_ms, found.moved_shards, found.carried_on) == (900.0, 2, 1)
    never = report(jobs, tally, killing, take_over=TakeOver(orphans={7, 9}, moved=1, recovered_at=None))
    assert (never.recovered_ms, never.moved_shards) == (None, 1)


def test_throughput_is_measured_until_the_kill() -> None:
    tally = Tally()
    for job in range(10):
        start(tally, job, 101.0)
        end(tally, job, 105.0 if job < 6 else 205.0)
    jobs = submitted(*range(10))
    assert report(jobs, tally).jobs_per_s == round(10 / 105, 1)
    assert report(jobs, tally, Killing(kind=Kill.WORKER, name="w1", at=110.0, gone_at=110.0)).jobs_per_s == 0.6
    # Nothing was left to do at the kill: the wait for it is not counted.
    assert report(jobs, tally, Killing(kind=Kill.WORKER, name="w1", at=900.0, gone_at=900.0)).jobs_per_s == round(
        10 / 105, 1
    )


def test_start_lateness_is_that_of_the_quiet_phase() -> None:
    tally = Tally()
    for job in range(100):
        start(tally, job, 500.0 + job / 1000)
        end(tally, job, 600.0)
    start(tally, 100, 550.0)
    found = report(submitted(*range(100), phase=Phase.QUIET, due_at=500.0) | submitted(100, due_at=500.0), tally)
    assert (found.start_ms_p50, found.start_ms_p99) == (49.0, 98.0)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 2.0), (75, 3.0), (99, 4.0), (100, 4.0)])
def test_percentile(percent: int, expected: float) -> None:
    assert percentile([3.0, 1.0, 4.0, 2.0], percent) == expected


def test_an_end_without_a_start_is_an_error() -> None:
    tally = Tally()
    start(tally, 1, 101.0)
    with pytest.raises(ValueError, match="job 1, claim 2 has ended on w1 without having started"):
        end(tally, 1, 102.0, claim=2)


def test_running_and_completed_are_counted_while_lines_come_in() -> None:
    tally = Tally()
    start(tally, 1, 101.0)
    start(tally, 2, 101.0)
    end(tally, 1, 102.0)
    assert (tally.running["w1"], tally.completed) == (1, 1)
    start(tally, 1, 103.0, claim=2)
    end(tally, 1, 104.0, claim=2)
    assert (tally.running["w1"], tally.completed) == (1, 1)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    tally = Tally()
    follower = Follower([file, tmp_path / "not yet"], tally)
    assert not follower.read()
    line = b'{"job":1,"claim":1,"attempt":1,"worker":"w1","claimed_at":1.0,"started_at":1.0}\n'
    file.write_bytes(line + line[:20])
    assert follower.read()
    assert tally.running["w1"] == 1
    assert not follower.read()
    with file.open("ab") as more:
        more.write(line[20:])
    assert follower.read()
    assert tally.running["w1"] == 2


@pytest.mark.parametrize(("name", "value"), [("jobs", 99), ("jobs", 1_000_001), ("nodes", 0), ("workers", 17)])
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    build: Callable[..., DemoSettings] = DemoSettings
    with pytest.raises(InvalidInput, match="has to be from") as caught:
        build(**{name: value})
    assert caught.value.field == name
