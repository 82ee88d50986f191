"""The checkers see each way in which a promise can be broken, and nothing where none is."""

from dataclasses import replace

import pytest

from tests.cluster.checker import check, check_completed, peak_of
from tests.cluster.checker_times import check_strikes
from tests.cluster.history import History, Recurring, Strike
from tests.cluster.nemeses.processes import KILL_NODE, STOP_WORKER
from tests.cluster.promises import Promise
from tests.cluster.standing import Span, Standing
from tests.unit.cluster.histories import (
    FIRST,
    SECOND,
    WALL,
    again,
    answer,
    at,
    execution,
    final,
    final_again,
    history,
    life,
    rerun,
    stop,
    submission,
)


def broken(one: History) -> set[Promise]:
    return {violation.promise for violation in check(one).violations}


def test_nothing_is_wrong_with_a_job_that_ran_once() -> None:
    verdict = check(history())
    assert verdict.ok
    assert verdict.numbers["submitted"] == verdict.numbers["executed"] == verdict.numbers["executions"] == 1


@pytest.mark.parametrize(
    ("changes", "promises"),
    [
        pytest.param({"jobs": ()}, {Promise.LOST}, id="unknown to the database"),
        pytest.param({"jobs": (final(state="pending"),)}, {Promise.STUCK}, id="never final"),
        pytest.param({"jobs": (final(state="failed"),)}, {Promise.STUCK}, id="failed"),
        pytest.param({"executions": ()}, {Promise.LOST}, id="completed without a trace"),
        pytest.param({"executions": (execution(end=None),)}, {Promise.LOST}, id="completed without an end"),
        pytest.param(
            {"executions": (execution(outcome="CancelledError"),)}, {Promise.LOST}, id="completed although cancelled"
        ),
        pytest.param({"executions": (execution(), execution(7))}, {Promise.LOST}, id="an execution of no job"),
        pytest.param(
            {"jobs": (final(), final(2, state="running"))}, {Promise.STUCK, Promise.DEDUPE}, id="a job nobody wanted"
        ),
    ],
)
def test_lost_and_stuck_jobs(changes: dict[str, object], promises: set[Promise]) -> None:
    assert broken(history(**changes)) == promises


def test_a_job_whose_submit_was_not_answered_has_to_be_completed_as_well() -> None:
    unanswered = history(answers=())
    assert check(unanswered).ok
    assert broken(replace(unanswered, jobs=(final(state="cancelled"),))) == {Promise.STUCK}


def test_lost_jobs_are_counted() -> None:
    assert check_completed(history(jobs=(), answers=(answer(1), answer(2)))).numbers["lost"] == 3


def test_the_accepted_result_is_that_of_the_latest_claim() -> None:
    dead = life(1, killed=at(1.5))
    good = rerun(execution(end=None), again(start=2.0, end=3.0), dead, life(2))
    assert check(good).ok
    # The first worker's result was taken although the second one had the job.
    stale = replace(good, executions=(execution(), again(start=2.0, end=3.0)), jobs=(final(),))
    assert broken(stale) == {Promise.STALE_ACCEPTED}
    assert broken(replace(good, jobs=(final_again(result_claim=1),))) == {Promise.STALE_ACCEPTED}
    assert broken(replace(good, jobs=(final_again(result_pid=FIRST),))) == {Promise.STALE_ACCEPTED}


def test_a_job_is_not_executed_again_while_its_worker_lives() -> None:
    found = check(rerun(execution(), again(start=2.0, end=3.0)))
    assert {violation.promise for violation in found.violations} == {Promise.DUPLICATE}
    assert found.numbers["duplicates"] == 1
    assert "job 1" in str(found.violations[0])


def test_a_claim_is_not_executed_twice() -> None:
    twice = history(executions=(execution(), execution(start=3.0, end=4.0)), lives=(life(1, killed=at(2.5)), life(2)))
    assert broken(twice) == {Promise.DUPLICATE}


def test_executions_of_living_workers_do_not_overlap() -> None:
    assert broken(rerun(execution(end=5.0), again(start=2.0, end=3.0))) == {Promise.DUPLICATE, Promise.OVERLAP}


def test_an_execution_that_has_lost_its_lease_may_overlap_and_is_counted() -> None:
    stopped = life(1, stops=(stop(1.5, 9.0),))
    verdict = check(rerun(execution(end=9.1), again(start=8.0, end=10.0), stopped, life(2)))
    assert verdict.ok
    assert verdict.numbers["overlapping_exempt"] == 1
    assert verdict.numbers["again_worker_stopped"] == 1


def test_an_overlap_before_the_lease_can_be_over_is_none_of_the_exempt() -> None:
    """Stopped at 1.5, the worker has its place until 5.5 at least."""
    stopped = life(1, stops=(stop(1.5, 9.0),))
    found = rerun(execution(end=9.1), again(start=5.0, end=6.0), stopped, life(2))
    assert broken(found) == {Promise.DUPLICATE, Promise.OVERLAP}


@pytest.mark.parametrize(
    ("due_at", "claimed_at", "early"),
    [(1.0, 1.0, False), (1.0, 0.999, True), (1.000002, 1.0, True), (1.001, 1.002, True), (None, 0.0, False)],
)
def test_nothing_runs_early(due_at: float | None, claimed_at: float, early: bool) -> None:
    wanted = submission(due_at=None if due_at is None else WALL + due_at)
    ran = execution(start=1.0, claimed_at=WALL + claimed_at)
    assert broken(history(submissions=(wanted,), executions=(ran,))) == ({Promise.EARLY} if early else set())


def recurring(*, exact: bool = True, fired: int = 1, skipped: int = 0) -> Recurring:
    nominal = (WALL + 1.0, WALL + 2.0)
    return Recurring(
        schedule=9, name="s", nominal=nominal, exact=exact, fired=fired, skipped={"overlap": skipped} if skipped else {}
    )


def fired(*seconds: float, schedule: Recurring) -> History:
    """A schedule with jobs for these nominal times, all of them executed at once."""
    jobs = tuple(
        final(number, name="s", schedule=9, scheduled_for=WALL + second)
        for number, second in enumerate(seconds, start=1)
    )
    ran = tuple(execution(number, start=second, end=second + 0.1) for number, second in enumerate(seconds, start=1))
    return history(submissions=(), answers=(), executions=ran, jobs=jobs, schedules=(schedule,))


def test_a_schedule_fires_its_expansion() -> None:
    verdict = check(fired(1.0, 2.0, schedule=recurring(fired=2)))
    assert verdict.ok
    assert verdict.numbers["firings"] == 2


@pytest.mark.parametrize(
    ("seconds", "schedule", "promises"),
    [
        ((1.0, 2.0, 2.0), recurring(fired=3), {Promise.DOUBLE_FIRING}),
        ((1.0, 2.0, 3.0), recurring(fired=3), {Promise.DOUBLE_FIRING}),
        ((1.0,), recurring(fired=1), {Promise.MISSED_FIRING}),
        ((1.0,), recurring(fired=1, skipped=1), {Promise.MISSED_FIRING}),
        ((1.0,), recurring(fired=1, exact=False), {Promise.MISSED_FIRING}),
        ((1.0,), recurring(fired=1, exact=False, skipped=2), {Promise.MISSED_FIRING}),
        ((1.0,), recurring(fired=1, exact=False, skipped=1), set()),
        ((1.0, 2.0), recurring(fired=1), {Promise.MISSED_FIRING}),
    ],
    ids=[
        "twice", "at a wrong time", "missing", "skipped against its policy", "missing and not counted",
        "more counted than missing", "skipped and counted", "miscounted",
    ],
)  # fmt: skip
def test_broken_schedules(seconds: tuple[float, ...], schedule: Recurring, promises: set[Promise]) -> None:
    assert broken(fired(*seconds, schedule=schedule)) == promises


def test_a_firing_does_not_run_before_its_nominal_time() -> None:
    good = fired(1.0, 2.0, schedule=recurring(fired=2))
    early = (replace(good.executions[0], claimed_at=WALL + 0.9), good.executions[1])
    assert broken(replace(good, executions=early)) == {Promise.EARLY}


def keyed(limit: int, *spans: tuple[float, float]) -> History:
    numbers = range(1, len(spans) + 1)
    return history(
        submissions=tuple(submission(n, concurrency_key="k", concurrency_limit=limit) for n in numbers),
        answers=tuple(answer(n) for n in numbers),
        executions=tuple(execution(n, start=a, end=b) for n, (a, b) in zip(numbers, spans, strict=True)),
        jobs=tuple(final(n) for n in numbers),
    )


def test_a_concurrency_key_keeps_to_its_limit() -> None:
    assert check(keyed(1, (1.0, 2.0), (2.0, 3.0), (3.5, 4.0))).ok
    assert broken(keyed(1, (1.0, 2.0), (1.9, 3.0))) == {Promise.KEY_EXCEEDED}
    assert check(keyed(2, (1.0, 4.0), (1.5, 3.0), (3.0, 5.0))).ok
    assert broken(keyed(2, (1.0, 4.0), (1.5, 3.0), (2.9, 5.0))) == {Promise.KEY_EXCEEDED}


def test_a_dead_workers_execution_takes_no_place_of_its_key() -> None:
    jobs = keyed(1, (1.0, 9.0), (3.0, 4.0))
    still = replace(jobs.executions[0], ended=None, outcome="")
    dead = replace(jobs, executions=(still, jobs.executions[1]), lives=(life(1, killed=at(2.5)), life(2)))
    assert Promise.KEY_EXCEEDED not in broken(
        replace(dead, executions=(still, replace(dead.executions[1], pid=SECOND)))
    )
    alive = replace(dead, lives=(life(1), life(2)))
    assert Promise.KEY_EXCEEDED in broken(alive)


def test_one_submission_makes_one_job() -> None:
    twice = history(
        answers=(answer(1), answer(1, job=2)),
        executions=(execution(1), execution(2)),
        jobs=(final(1), final(2, name="job-1")),
    )
    assert broken(twice) == {Promise.DEDUPE}
    assert check(history(answers=(answer(), answer(created=False)))).numbers["answered_repeatedly"] == 1
    assert broken(history(answers=(answer(), answer()))) == {Promise.DEDUPE}
    assert broken(history(answers=(answer(differs=True),))) == {Promise.DEDUPE}


def test_a_second_job_of_a_submission_counts_even_if_its_submit_was_never_answered() -> None:
    stored = history(executions=(execution(1), execution(2)), jobs=(final(1), final(2, name="job-1")))
    assert broken(stored) == {Promise.DEDUPE}


def test_a_fault_that_never_struck_makes_the_run_worthless() -> None:
    chosen = (KILL_NODE, STOP_WORKER)
    struck = Strike(fault=KILL_NODE, victim="node-1", at=at(1.0))
    assert broken(history(chosen=chosen, strikes=(struck,))) == {Promise.NO_STRIKE}
    other = Strike(fault=STOP_WORKER, victim="worker-1", at=at(1.0))
    found = check_strikes(history(chosen=chosen, strikes=(struck, struck, other)))
    assert not found.violations
    assert found.numbers == {"struck_kill_node": 2, "struck_stop_worker": 1}


def test_the_peak_counts_ends_before_starts_and_nothing_invalid() -> None:
    standing = Standing(history())

    def span(start: float, end: float) -> Span:
        return standing.span(execution(start=start, end=end))

    assert len(peak_of([span(1, 2), span(2, 3)])) == 1
    assert len(peak_of([span(1, 4), span(2, 3), span(2.5, 5)])) == 3
    over = replace(span(1, 4), valid_until=2.0)
    assert len(peak_of([over, span(2, 3)])) == 1
    assert peak_of([]) == []
