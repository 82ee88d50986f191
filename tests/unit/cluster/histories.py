"""Small histories to be broken: one worker, a node, and jobs that ran as they should."""

from dataclasses import replace

from tests.cluster.history import Answer, Execution, FinalJob, History, Life, Stop, Submission
from tests.cluster.journal import Instant
from tests.cluster.worker_program import COMPLETED, SHORT

# The wall clock is ahead of the monotonic one by this much.
WALL = 1_800_000_000.0
LEASE_S = 6.0
RESET_GRACE_S = 3.0
KILL_GRACE_S = 2.0
FIRST, SECOND = 101, 102


def at(second: float) -> Instant:
    """The moment so many seconds after the beginning."""
    return Instant(second, WALL + second)


def submission(number: int = 1, **changes: object) -> Submission:
    one = Submission(name=f"job-{number}", handler=SHORT, sent=at(0.5))
    return replace(one, **changes)  # type: ignore[arg-type]


def answer(number: int = 1, **changes: object) -> Answer:
    one = Answer(name=f"job-{number}", job=number, created=True, differs=False, at=at(0.6))
    return replace(one, **changes)  # type: ignore[arg-type]


def execution(number: int = 1, *, start: float = 1.0, end: float | None = 2.0, **changes: object) -> Execution:
    """An execution on the first worker, claimed when it started."""
    one = Execution(
        job=number,
        claim=1,
        attempt=1,
        handler=SHORT,
        worker="worker-1",
        pid=FIRST,
        claimed_at=WALL + start,
        started=at(start),
        ended=None if end is None else at(end),
        outcome="" if end is None else COMPLETED,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def again(number: int = 1, *, start: float, end: float | None, **changes: object) -> Execution:
    """A second execution, on the second worker."""
    values: dict[str, object] = {"claim": 2, "attempt": 2, "worker": "worker-2", "pid": SECOND} | changes
    return execution(number, start=start, end=end, **values)


def final(number: int = 1, **changes: object) -> FinalJob:
    one = FinalJob(
        job=number,
        name=f"job-{number}",
        state="completed",
        claim=1,
        due_at=WALL,
        result_claim=1,
        result_pid=FIRST,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def final_again(number: int = 1, **changes: object) -> FinalJob:
    """A job that was completed by its second claim, on the second worker."""
    return final(number, **{"claim": 2, "result_claim": 2, "result_pid": SECOND} | changes)


def life(worker: int = 1, **changes: object) -> Life:
    one = Life(kind="worker", process=f"worker-{worker}", pid=FIRST + worker - 1, started=at(0.0))
    return replace(one, **changes)  # type: ignore[arg-type]


def stop(began: float, ended: float | None) -> Stop:
    return Stop(began=at(began), ended=None if ended is None else at(ended))


def history(**changes: object) -> History:
    """One job, submitted, executed once, completed; two workers that live."""
    one = History(
        lease_s=LEASE_S,
        reset_grace_s=RESET_GRACE_S,
        kill_grace_s=KILL_GRACE_S,
        submissions=(submission(),),
        answers=(answer(),),
        executions=(execution(),),
        lives=(life(1), life(2)),
        jobs=(final(),),
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def rerun(first: Execution, second: Execution, *lives: Life, **changes: object) -> History:
    """One job that was executed twice, and completed by its second claim."""
    values: dict[str, object] = {"executions": (first, second), "jobs": (final_again(),)}
    if lives:
        values["lives"] = lives
    return history(**values | changes)
