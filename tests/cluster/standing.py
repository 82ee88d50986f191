"""Until when an execution held its place, and why a job was executed again: pure, from the journals alone."""

import math
from dataclasses import dataclass
from enum import StrEnum

from tests.cluster.hearing import cut_off
from tests.cluster.history import Execution, History, Life, Stop, Submission
from tests.cluster.worker_program import COMPLETED, SNOOZE_S

# A worker's lease is renewed once a third of it has passed, so a worker that falls silent has at least this share left.
_LEAST_LEASE = 2 / 3


class Cause(StrEnum):
    """What entitles the cluster to execute a job again."""

    WORKER_DIED = "worker_died"
    WORKER_STOPPED = "worker_stopped"
    """Stopped for longer than its lease, or than the grace of a stream that was broken."""
    WORKER_CUT_OFF = "worker_cut_off"
    """From every node that could have kept its lease, for as long as that, or as the grace of a stream that broke."""
    GIVEN_BACK = "given_back"
    """By a worker that was asked to stop."""
    UNACKNOWLEDGED = "unacknowledged"
    """The worker was asked to stop, and has left with a result that no node had acknowledged in time."""
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    """The handler raised an error, as it was to."""
    SNOOZED = "snoozed"
    """The handler asked to be run again later, as it was to, and it is later."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when a handler ran, and until when its execution was valid, on the monotonic clock."""

    execution: Execution
    start: float
    end: float
    """Infinite if it is not known to have ended."""
    valid_until: float

    def runs_with(self, other: "Span") -> bool:
        """Whether both handlers ran at some moment."""
        return self.start < other.end and other.start < self.end

    def valid_with(self, other: "Span") -> bool:
        """Whether both were valid, and ran, at some moment."""
        return self.start < min(other.end, other.valid_until) and other.start < min(self.end, self.valid_until)


class Standing:
    """Answers both questions for the executions of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lives = {(life.process, life.pid): life for life in history.lives}
        # Workers give up a node that is stopped; it notices their broken streams when it goes on.
        self._breaks = [
            stop.ended for life in history.lives if life.kind == "node" for stop in life.stops if stop.ended
        ]
        self._cut_off = cut_off(history)
        names = {answer.job: answer.name for answer in history.answers} | {job.job: job.name for job in history.jobs}
        by_name = {submission.name: submission for submission in history.submissions}
        self._submissions = {job: by_name[name] for job, name in names.items() if name in by_name}

    def submission_of(self, job: int) -> Submission | None:
        """Return who wanted a job; None for a schedule's, or one that nobody wanted."""
        return self._submissions.get(job)

    def life_of(self, execution: Execution) -> Life | None:
        """Return the process that an execution ran in."""
        return self._lives.get((execution.worker, execution.pid))

    def span(self, execution: Execution) -> Span:
        """Return when an execution ran and was valid."""
        ends = [math.inf if execution.ended is None else execution.ended.mono]
        valid = [math.inf]
        life = self.life_of(execution)
        if life is not None:
            ends += [end.mono for end in (life.killed, life.gone) if end is not None]
            valid += [mono for mono, _ in self._lost_leases(life, execution)]
            valid += self._lost_by_network(life, execution)
        timeout_s = self._timeout_s(execution)
        if timeout_s is not None:
            drift = execution.started.mono - execution.started.wall
            valid.append(execution.claimed_at + timeout_s + self._history.kill_grace_s + drift)
        return Span(execution, execution.started.mono, min(ends), min(valid))

    def cause(self, execution: Execution, later: Execution) -> Cause | None:
        """Return why `later` may execute the job again although `execution` did; None if there is no reason.

        A reason has to lie before the later claim.
        """
        if execution.outcome == "Snooze":
            later_s = later.started.mono - (execution.ended or execution.started).mono
            if execution.claim == 1 and later_s >= SNOOZE_S:
                return Cause.SNOOZED
        # A worker that was stopped may ask to be run later when somebody else has the job already.
        elif execution.outcome not in ("", COMPLETED, "CancelledError", "Cancelled"):
            submission = self.submission_of(execution.job)
            return Cause.FAILED if submission is not None and execution.attempt <= submission.failures else None
        life = self.life_of(execution)
        if life is not None:
            if any(wall <= later.claimed_at for _, wall in self._lost_leases(life, execution)):
                return Cause.WORKER_STOPPED
            if life.killed is not None and life.killed.wall <= later.claimed_at:
                return Cause.WORKER_DIED
            drift = execution.started.wall - execution.started.mono
            if any(mono + drift <= later.claimed_at for mono in self._lost_by_network(life, execution)):
                return Cause.WORKER_CUT_OFF
            asked = life.terminated is not None and life.terminated.wall <= later.claimed_at
            if asked and execution.outcome != COMPLETED:
                return Cause.GIVEN_BACK
            if asked and life.gone is not None and life.gone.wall <= later.claimed_at:
                return Cause.UNACKNOWLEDGED
        timeout_s = self._timeout_s(execution)
        if timeout_s is not None and later.claimed_at >= execution.claimed_at + timeout_s:
            return Cause.TIMED_OUT
        return None

    def _timeout_s(self, execution: Execution) -> float | None:
        submission = self.submission_of(execution.job)
        return None if submission is None else submission.timeout_s

    def _lost_leases(self, life: Life, execution: Execution) -> list[tuple[float, float]]:
        """Return when (monotonic, wall) the worker may have lost its lease by being stopped, from the claim on."""
        lost = []
        for stop in life.stops:
            over = stop.ended or life.killed or life.gone
            if over is not None and over.wall <= execution.claimed_at:
                continue
            began = stop.began
            length_s = math.inf if over is None else over.mono - began.mono
            reasons = [_LEAST_LEASE * self._history.lease_s, *self._graces(stop)]
            lost += [(began.mono + after_s, began.wall + after_s) for after_s in reasons if after_s <= length_s]
        return lost

    def _lost_by_network(self, life: Life, execution: Execution) -> list[float]:
        """Return when (monotonic) the worker may have been given up because no node heard it, from the claim on."""
        enough_s = min(_LEAST_LEASE * self._history.lease_s, self._history.reset_grace_s)
        drift = execution.started.mono - execution.started.wall
        return [
            began + enough_s
            for began, ended in self._cut_off.get(life.process, [])
            if ended > execution.claimed_at + drift and ended - began >= enough_s
        ]

    def _graces(self, stop: Stop) -> list[float]:
        """Return how long after a stop began the grace of a broken stream may have been over.

        The stream broke so shortly before, or while the worker was stopped, that it may not have come back in time.
        """
        grace_s = self._history.reset_grace_s
        ends = [at.mono + grace_s - stop.began.mono for at in self._breaks]
        return [after_s for after_s in ends if after_s > 0]
