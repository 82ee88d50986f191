"""What entitles a cluster to run a job again, and until when an execution holds its place."""

import math

import pytest

from tests.cluster.history import Execution, Life
from tests.cluster.standing import Cause, Standing
from tests.unit.cluster.histories import (
    KILL_GRACE_S,
    LEASE_S,
    WALL,
    again,
    at,
    execution,
    history,
    life,
    rerun,
    stop,
    submission,
)


def cause(first: Execution, second: Execution, *lives: Life, **changes: object) -> Cause | None:
    return Standing(rerun(first, second, *lives, **changes)).cause(first, second)


@pytest.mark.parametrize(
    ("killed", "claimed", "expected"),
    [(1.5, 2.0, Cause.WORKER_DIED), (5.0, 6.0, Cause.WORKER_DIED), (2.5, 2.0, None), (None, 2.0, None)],
    ids=["while it ran", "with its result not yet accepted", "only after the job was claimed again", "never"],
)
def test_death_of_the_worker(killed: float | None, claimed: float, expected: Cause | None) -> None:
    died = life(1, killed=None if killed is None else at(killed))
    assert cause(execution(end=2.0), again(start=claimed, end=9.0), died, life(2)) is expected


def test_death_of_another_worker_is_no_reason() -> None:
    assert cause(execution(), again(start=3.0, end=4.0), life(1), life(2, killed=at(2.5))) is None


@pytest.mark.parametrize(
    ("began", "ended", "claimed", "expected"),
    [
        (1.5, 9.0, 6.0, Cause.WORKER_STOPPED),
        (1.5, None, 6.0, Cause.WORKER_STOPPED),
        (1.5, 9.0, 5.0, None),
        (1.5, 4.0, 6.0, None),
        (0.1, 0.9, 6.0, None),
    ],
    ids=["beyond its lease", "for ever", "claimed too soon", "too briefly", "before"],
)
def test_stops(began: float, ended: float | None, claimed: float, expected: Cause | None) -> None:
    stopped = life(1, stops=(stop(began, ended),))
    assert cause(execution(end=2.0), again(start=claimed, end=9.5), stopped, life(2)) is expected


@pytest.mark.parametrize(
    ("broke", "began", "ended", "claimed", "expected"),
    [
        (2.0, 3.0, 9.0, 5.0, Cause.WORKER_STOPPED),
        (2.0, 3.0, 9.0, 4.9, None),
        (2.0, 3.0, 4.5, 5.0, None),
        (2.0, 5.1, 9.0, 6.0, None),
        (4.0, 3.0, 9.0, 6.9, None),
    ],
    ids=["over while it was stopped", "claimed too soon", "back in time", "stopped only after it", "broken later"],
)
def test_grace_of_a_stream_that_a_stopped_node_broke(
    broke: float, began: float, ended: float, claimed: float, expected: Cause | None
) -> None:
    node = Life(kind="node", process="node-1", pid=1, started=at(0.0), stops=(stop(0.5, broke),))
    stopped = life(1, stops=(stop(began, ended),))
    found = cause(execution(end=2.0), again(start=claimed, end=9.5), node, stopped, life(2))
    assert found is expected


def test_what_is_handed_over_after_a_stop_has_its_full_lease() -> None:
    stopped = life(1, stops=(stop(1.0, 9.0),))
    assert cause(execution(start=9.5, end=10.0), again(start=11.0, end=12.0), stopped, life(2)) is None


def test_a_worker_that_was_asked_to_stop_gives_back() -> None:
    first, second = execution(outcome="CancelledError"), again(start=3.0, end=4.0)
    assert cause(first, second, life(1, terminated=at(1.5)), life(2)) is Cause.GIVEN_BACK
    assert cause(first, second, life(1, terminated=at(3.5)), life(2)) is None
    # Work that is done is not given back; it may be lost with a worker that leaves while no node answers.
    assert cause(execution(), second, life(1, terminated=at(1.5)), life(2)) is None
    assert cause(execution(), second, life(1, terminated=at(1.5), gone=at(3.5)), life(2)) is None
    assert cause(execution(), second, life(1, terminated=at(1.5), gone=at(2.5)), life(2)) is Cause.UNACKNOWLEDGED


def test_failures_that_were_asked_for() -> None:
    first, second = execution(outcome="Flaky"), again(start=3.0, end=4.0)
    assert cause(first, second, submissions=(submission(failures=1),)) is Cause.FAILED
    assert cause(first, second, submissions=(submission(failures=0),)) is None


@pytest.mark.parametrize(("again_at", "claim", "expected"), [(2.31, 1, Cause.SNOOZED), (2.2, 1, None), (2.31, 2, None)])
def test_snoozes_that_were_asked_for(again_at: float, claim: int, expected: Cause | None) -> None:
    first = execution(outcome="Snooze", claim=claim)
    assert cause(first, again(start=again_at, end=4.0, claim=claim + 1)) is expected


def test_a_snooze_of_a_worker_that_had_lost_its_lease_meanwhile() -> None:
    late = execution(start=9.1, end=9.2, claimed_at=WALL + 1.0, outcome="Snooze")
    second = again(start=8.0, end=8.5)
    assert cause(late, second, life(1, stops=(stop(1.5, 9.0),)), life(2)) is Cause.WORKER_STOPPED
    assert cause(late, second, life(1), life(2)) is None


@pytest.mark.parametrize(("claimed", "expected"), [(2.1, Cause.TIMED_OUT), (1.9, None)])
def test_timeouts(claimed: float, expected: Cause | None) -> None:
    first, second = execution(outcome="CancelledError"), again(start=claimed, end=4.0)
    assert cause(first, second, submissions=(submission(timeout_s=1.0),)) is expected
    assert cause(first, second) is None


def test_spans() -> None:
    def span(one: Execution, *lives: Life, **changes: object) -> tuple[float, float, float]:
        found = Standing(history(lives=lives, executions=(one,), **changes)).span(one)
        return found.start, found.end, found.valid_until

    assert span(execution(), life(1)) == (1.0, 2.0, math.inf)
    assert span(execution(end=None), life(1)) == (1.0, math.inf, math.inf)
    assert span(execution(end=None), life(1, killed=at(1.5))) == (1.0, 1.5, math.inf)
    assert span(execution(end=None), life(1, gone=at(1.7))) == (1.0, 1.7, math.inf)
    stopped = life(1, stops=(stop(1.5, 9.0),))
    assert span(execution(end=9.5), stopped) == (1.0, 9.5, 1.5 + LEASE_S * 2 / 3)
    limited = span(execution(end=9.5, claimed_at=WALL + 0.9), life(1), submissions=(submission(timeout_s=1.0),))
    assert limited == pytest.approx((1.0, 9.5, 0.9 + 1.0 + KILL_GRACE_S))
