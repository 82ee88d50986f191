"""How well a cluster served while things were broken, as plain questions to a history: pure."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

from tests.cluster.history import History
from tests.cluster.worker_program import SHORT

# Jobs of these reasons run again by intent, whatever is broken.
BY_INTENT = frozenset({"again_failed", "again_snoozed", "again_timed_out"})


@dataclass(frozen=True, slots=True)
class Service:
    """What became of the jobs that were sent in some span, and were due at once."""

    sent: int
    answered: int
    """Acknowledged in time."""
    started: int
    """Acknowledged and begun in time."""

    @property
    def share(self) -> float:
        """The share of the jobs that were served."""
        return self.started / self.sent if self.sent else 0.0


def service(history: History, *, since: float, until: float, within_s: float) -> Service:
    """Return how the plain jobs were served that were sent in a span of the monotonic clock.

    `within_s` is what an answer, and after it a start, may take.
    """
    wanted = {
        one.name: one.sent.mono
        for one in history.submissions
        if since <= one.sent.mono < until and one.due_at is None and one.handler == SHORT
    }
    answered: dict[str, tuple[int, float]] = {}
    for answer in history.answers:
        if answer.name in wanted:
            answered.setdefault(answer.name, (answer.job, answer.at.mono))
    begun: dict[int, float] = {}
    for execution in history.executions:
        begun.setdefault(execution.job, execution.started.mono)
    in_time = {name: job for name, (job, at) in answered.items() if at - wanted[name] <= within_s}
    started = sum(begun.get(job, inf) - wanted[name] <= 2 * within_s for name, job in in_time.items())
    return Service(len(wanted), len(in_time), started)


def restarted(history: History) -> list[str]:
    """Return the processes that did not live throughout."""
    lives = history.lives
    again = {life.process for life in lives if sum(life.process == other.process for other in lives) > 1}
    ended = {life.process for life in lives if life.killed or life.terminated or life.gone}
    return sorted(again | ended)


def longest_silence_s(history: History, *, since: float, until: float) -> float:
    """Return the longest time in a span of the monotonic clock in which no execution began."""
    starts = sorted(one.started.mono for one in history.executions if since <= one.started.mono < until)
    marks = [since, *starts, until]
    return max(later - earlier for earlier, later in pairwise(marks))
