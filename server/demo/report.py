"""The account of a demo: pure, from what was submitted, what the logs say, and what was killed."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from server.demo.settings import Kill
from server.demo.tally import Execution, Tally
from server.domain.sharding import shard_of_id

# The result of an execution that ended this shortly before its worker was killed may not have been sent.
_RESULT_UNDER_WAY_S: Final = 1.0


class Phase(Enum):
    """The part of the demo that a job belongs to."""

    WARM_UP = auto()
    QUIET = auto()
    LONG = auto()
    BURST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job whose submit was answered. Instants are in seconds since 1970."""

    phase: Phase
    submitted_at: float
    """Just before the submit was sent."""
    due_at: float | None
    """The due time that was asked for; None: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """What was killed, and when. Instants are in seconds since 1970."""

    kind: Kill
    name: str
    at: float
    """Just before the signal was sent."""
    gone_at: float
    """When the process was seen to be gone; it may have gone on working until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """What became of the shards that a killed node served."""

    orphans: Collection[int]
    """Those shards."""
    moved: int
    """How many of them were served next by another node."""
    recovered_at: float | None
    """When the last of them was served again, in seconds since 1970; None: not all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The numbers; see the package for their meaning. Times are in milliseconds, None where nothing was measured."""

    coordinator: str
    submitted: int
    completed: int
    failed: int
    lost: int
    duplicates: int
    early: int
    jobs_per_s: float
    start_ms_p50: float | None
    start_ms_p99: float | None
    killed: Kill
    recovered_ms: float | None
    moved_shards: int
    carried_on: int
    """Jobs of the killed node that were running when it was killed, and ended where they ran."""
    victim: str
    """Name of the killed process, empty if there was none."""
    expected_duplicates: int
    """Those of `duplicates` that a killed worker's running jobs account for."""
    rerun_ms: float | None
    """From the kill until the last of the killed worker's running jobs had completed elsewhere."""

    all_final: bool
    """Whether the cluster had no job left in the end."""

    @property
    def good(self) -> bool:
        """Whether the promises were kept: nothing lost, nothing early."""
        return self.all_final and self.lost == 0 and self.early == 0

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        return {
            "coordinator": self.coordinator,
            "submitted": self.submitted,
            "completed": self.completed,
            "failed": self.failed,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "early": self.early,
            "jobs_per_s": self.jobs_per_s,
            "start_ms_p50": self.start_ms_p50,
            "start_ms_p99": self.start_ms_p99,
            "killed": self.killed.value,
            "recovered_ms": self.recovered_ms,
            "moved_shards": self.moved_shards,
        }


def account(
    *,
    coordinator: str,
    jobs: Mapping[int, SubmittedJob],
    tally: Tally,
    killing: Killing | None,
    failed: int,
    all_final: bool,
    take_over: TakeOver | None = None,
) -> Report:
    """Return the numbers; `failed` is what the cluster itself says, all others come from the logs.

    `take_over` is what was seen of the shards of a killed node.
    """
    executions = {job: tally.executions(job) for job in jobs}
    completed = sum(any(one.completed for one in ran) for ran in executions.values())
    repeated = {job: ran for job, ran in executions.items() if len(ran) > 1}
    expected = {job: ran for job, ran in repeated.items() if _was_running(ran, killing)}
    lateness = [
        (ran[0].started_at - due_at) * 1000
        for job, ran in executions.items()
        if ran and jobs[job].phase is Phase.QUIET and (due_at := jobs[job].due_at) is not None
    ]
    return Report(
        coordinator=coordinator,
        submitted=len(jobs),
        completed=completed,
        failed=failed,
        lost=len(jobs) - completed,
        duplicates=sum(len(ran) - 1 for ran in repeated.values()),
        early=sum(_is_early(one, jobs[job]) for job, ran in executions.items() for one in ran),
        jobs_per_s=_rate(jobs, executions, killing),
        start_ms_p50=percentile(lateness, 50),
        start_ms_p99=percentile(lateness, 99),
        killed=killing.kind if killing is not None else Kill.NONE,
        recovered_ms=_first_after(executions, killing) if take_over is None else _recovered_ms(take_over, killing),
        moved_shards=take_over.moved if take_over is not None else 0,
        carried_on=_carried_on(executions, killing, take_over),
        victim=killing.name if killing is not None else "",
        expected_duplicates=sum(len(ran) - 1 for ran in expected.values()),
        rerun_ms=_last_rerun(expected, killing),
        all_final=all_final,
    )


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that at least `percent` % of the values do not exceed, rounded to 0.01."""
    if not values:
        return None
    return round(sorted(values)[math.ceil(len(values) * percent / 100) - 1], 2)


def _was_running(ran: Sequence[Execution], killing: Killing | None) -> bool:
    """Whether a killed worker had the job in hand, and its death alone explains that it ran again, once."""
    if killing is None or killing.kind is not Kill.WORKER or len(ran) != 2:
        return False
    first, second = sorted(ran, key=lambda one: one.claim)
    in_hand = first.ended_at is None or first.ended_at > killing.at - _RESULT_UNDER_WAY_S
    return (
        first.worker == killing.name
        and in_hand
        and first.started_at <= killing.gone_at
        and killing.at <= second.claimed_at
    )


def _is_early(one: Execution, job: SubmittedJob) -> bool:
    return job.due_at is not None and min(one.claimed_at, one.started_at) < job.due_at


def _rate(
    jobs: Mapping[int, SubmittedJob], executions: Mapping[int, Sequence[Execution]], killing: Killing | None
) -> float:
    submits = [job.submitted_at for job in jobs.values() if _counts_for_rate(job)]
    ends = [
        min(one.ended_at for one in ran if one.completed and one.ended_at is not None)
        for job, ran in executions.items()
        if _counts_for_rate(jobs[job]) and any(one.completed for one in ran)
    ]
    if not ends:
        return 0.0
    until = max(ends) if killing is None else min(killing.at, max(ends))
    return round(sum(end <= until for end in ends) / max(until - min(submits), 0.001), 1)


def _recovered_ms(take_over: TakeOver, killing: Killing | None) -> float | None:
    if killing is None or take_over.recovered_at is None:
        return None
    return round((take_over.recovered_at - killing.at) * 1000, 1)


def _carried_on(
    executions: Mapping[int, Sequence[Execution]], killing: Killing | None, take_over: TakeOver | None
) -> int:
    if killing is None or take_over is None:
        return 0
    return sum(
        len(ran) == 1 and ran[0].completed and ran[0].started_at <= killing.at <= (ran[0].ended_at or 0.0)
        for job, ran in executions.items()
        if shard_of_id(job) in take_over.orphans
    )


def _counts_for_rate(job: SubmittedJob) -> bool:
    return job.phase is Phase.BURST and job.due_at is None


def _first_after(executions: Mapping[int, Sequence[Execution]], killing: Killing | None) -> float | None:
    if killing is None:
        return None
    ends = [
        one.ended_at
        for ran in executions.values()
        for one in ran
        if one.completed and one.ended_at is not None and one.claimed_at > killing.at
    ]
    return round((min(ends) - killing.at) * 1000, 1) if ends else None


def _last_rerun(expected: Mapping[int, Sequence[Execution]], killing: Killing | None) -> float | None:
    if killing is None or not expected:
        return None
    ends = [one.ended_at for ran in expected.values() for one in ran if one.completed and one.ended_at is not None]
    return round((max(ends) - killing.at) * 1000, 1) if ends else None
