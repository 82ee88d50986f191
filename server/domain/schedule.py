"""Schedules as values: when they fire, and what happens if a firing meets live jobs or was missed.

The nominal times of a schedule come from one of three specs, cut to [start_at, end_at). Computing with them is in
`schedule_times`, deciding what becomes a job in `firing`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from server.domain.cron import CronExpression
from server.domain.cron_walk import FoldPolicy, GapPolicy, require_aware
from server.domain.errors import InvalidInput
from server.domain.zones import DEFAULT_ZONE, load_zone

MIN_INTERVAL = timedelta(seconds=1)
MAX_INTERVAL = timedelta(days=3660)
MAX_JITTER = timedelta(days=1)


class OverlapPolicy(IntEnum):
    """What happens if jobs of earlier firings are still live when the next one comes. The numbers are stored."""

    SKIP = 1
    """The firing is skipped."""
    BUFFER_ONE = 2
    """The firing waits; if one waits already, it is skipped."""
    BUFFER_ALL = 3
    """The firing waits behind all earlier ones."""
    CANCEL_RUNNING = 4
    """The live jobs are cancelled."""
    ALLOW = 5
    """Jobs run side by side."""


class CatchUpPolicy(IntEnum):
    """What happens with firings that were missed in an outage or a pause. The numbers are stored."""

    ONE = 1
    """The newest one is made good for all."""
    ALL = 2
    """All inside the catch-up window, the oldest first, up to a limit."""
    NONE = 3
    """None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSpec:
    """Fires by a cron expression in an IANA time zone (default UTC). Raise InvalidInput for an unknown zone."""

    expression: CronExpression
    time_zone: str = DEFAULT_ZONE
    gap: GapPolicy = GapPolicy.RUN_AFTER
    fold: FoldPolicy = FoldPolicy.FIRST

    def __post_init__(self) -> None:
        load_zone(self.time_zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSpec:
    """Fires at anchor + n × every, for whole n of either sign: the anchor sets the phase, not the start.

    Raise InvalidInput if `every` is below 1 s or above ten years.
    """

    every: timedelta
    anchor: datetime

    def __post_init__(self) -> None:
        require_aware(self.anchor)
        if not MIN_INTERVAL <= self.every <= MAX_INTERVAL:
            raise InvalidInput("every", self.every, f"must be from 1 s to {MAX_INTERVAL.days} days")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceSpec:
    """Fires once, at an instant."""

    at: datetime

    def __post_init__(self) -> None:
        require_aware(self.at)


TimingSpec = CronSpec | IntervalSpec | OnceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTiming:
    """When a schedule fires: the nominal times of `spec` in [start_at, end_at), each made due up to `jitter` later.

    Raise InvalidInput if the jitter is negative or above a day, or if nothing lies between start and end.
    """

    spec: TimingSpec
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: timedelta = timedelta()

    def __post_init__(self) -> None:
        if self.start_at is not None:
            require_aware(self.start_at)
        if self.end_at is not None:
            require_aware(self.end_at)
        if self.start_at is not None and self.end_at is not None and self.end_at <= self.start_at:
            raise InvalidInput(
                "end_at", self.end_at.isoformat(), f"must lie after start_at {self.start_at.isoformat()}"
            )
        if not timedelta() <= self.jitter <= MAX_JITTER:
            raise InvalidInput("jitter", self.jitter, "must be from 0 to 1 day")
