"""What a node did in the last quarter of an hour, in steps: its counters, looked at again and again."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from server.domain.job import JobState
from server.engine.engine import Engine

STEP: Final = timedelta(seconds=5)
KEPT_STEPS: Final = 180
#: How often the counters have to be looked at: what happens around the end of a step may be counted so much late.
LOOK_EVERY_S: Final = 0.5

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Attempts started; jobs completed, failed for good, cancelled while they ran; tries to be repeated; and the
    attempts started by their lateness, see `server.engine.tally`."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    lateness: tuple[int, ...] = ()

    def since(self, before: "Counts") -> "Counts":
        """Return what was counted after `before`."""
        return Counts(
            started=self.started - before.started,
            completed=self.completed - before.completed,
            failed=self.failed - before.failed,
            cancelled=self.cancelled - before.cancelled,
            retried=self.retried - before.retried,
            lateness=tuple(now - then for now, then in zip(self.lateness, before.lateness, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What was counted in one step; `number` is that of the step since 1970."""

    number: int
    counts: Counts

    @property
    def begun_at(self) -> datetime:
        """When the step began."""
        return _EPOCH + self.number * STEP


def engine_counts(engine: Engine) -> Counts:
    """Return what an engine has counted since it was made."""
    ended = engine.ender.ended_by_state
    return Counts(
        started=engine.claimer.claimed_jobs,
        completed=ended.get(JobState.COMPLETED, 0),
        failed=ended.get(JobState.FAILED, 0),
        cancelled=ended.get(JobState.CANCELLED, 0),
        retried=engine.ender.retries,
        lateness=tuple(engine.claimer.lateness.counts),
    )


class ActivityLog:
    """The latest steps. `look` is to be called every `LOOK_EVERY_S`.

    The steps of all nodes are cut at the same instants of the database's clock, which `clock` tells; so they can be
    added up.
    """

    def __init__(self, read: Callable[[], Counts], clock: Callable[[], datetime]) -> None:
        self._read = read
        self._clock = clock
        self.since = clock()
        """Since when this counts."""
        self._number = _number(self.since)
        self._before = read()
        self._steps: deque[Step] = deque(maxlen=KEPT_STEPS)

    def look(self) -> None:
        """Close the current step if its time is over."""
        number = _number(self._clock())
        if number == self._number:
            return
        counts = self._read()
        if number > self._number:
            self._steps.append(Step(number=self._number, counts=counts.since(self._before)))
        else:
            # The database's clock was set back: what was counted meanwhile belongs to no step any more.
            self._steps.clear()
        self._number, self._before = number, counts

    def steps(self) -> list[Step]:
        """Return the steps that are over and in which something was counted at all, the oldest first."""
        oldest = self._number - KEPT_STEPS
        return [step for step in self._steps if step.number >= oldest]


def _number(instant: datetime) -> int:
    return (instant - _EPOCH) // STEP
