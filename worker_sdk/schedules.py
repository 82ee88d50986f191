"""Schedules as a client sees them: what it asks for, and where they stand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from worker_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from worker_sdk.durations import Span
    from worker_sdk.jobs import JobState
    from worker_sdk.policies import RetryPolicy, Timeouts


class Overlap(StrEnum):
    """What happens if jobs of earlier firings are still live when the next one comes."""

    SKIP = "skip"
    """The firing is skipped and counted. The default."""
    BUFFER_ONE = "buffer_one"
    """One firing may wait behind the running one; more are skipped and counted."""
    BUFFER_ALL = "buffer_all"
    """All firings wait in line."""
    CANCEL_RUNNING = "cancel_running"
    """The running job is cancelled."""
    ALLOW = "allow"
    """Firings run side by side."""


class CatchUp(StrEnum):
    """What happens with firings missed during an outage or a pause."""

    ONE = "one"
    """The latest missed firing runs, the others are counted. The default."""
    ALL = "all"
    """All missed firings inside the window run, the oldest first."""
    NONE = "none"
    """None runs; they are counted."""


class Gap(StrEnum):
    """What happens to a nominal time that a change of the clocks leaves out."""

    RUN_AFTER = "run_after"
    """Fires once, at the first instant after the gap. The default."""
    SKIP = "skip"
    """Does not fire."""


class Fold(StrEnum):
    """What happens to a fixed nominal time that a change of the clocks repeats."""

    FIRST = "first"
    """Fires once, the first time. The default."""
    BOTH = "both"
    """Fires both times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A recurring definition. Exactly one of `cron`, `every` and `once_at` says when it fires."""

    name: str
    """Unique in the namespace."""
    handler: str
    """Name of the worker code that executes its jobs."""
    payload: object = None
    """Input of the handler: bytes, or whatever the client's codec can encode."""
    cron: str = ""
    """Five fields, or six with the seconds first; names, ranges, steps, lists, @hourly and its like, L, # and H."""
    time_zone: str = ""
    """IANA zone of `cron`. The default is UTC."""
    gap: Gap | None = None
    """What happens in the gap when clocks go forward."""
    fold: Fold | None = None
    """What happens in the fold when clocks go back."""
    every: "Span | None" = None
    """Distance between firings, at least 1 s."""
    anchor: datetime | None = None
    """Firings of `every` fall on anchor + n * every. The default is the creation of the schedule."""
    once_at: datetime | None = None
    """Fires once, at this instant."""
    overlap: Overlap | None = None
    """What happens if jobs of earlier firings are still live."""
    catch_up: CatchUp | None = None
    """What happens with missed firings."""
    catch_up_window: "Span | None" = None
    """Missed firings older than this are skipped and counted. The default is 1 day."""
    start_at: datetime | None = None
    """No firing before this instant."""
    end_at: datetime | None = None
    """No firing at or after this instant."""
    jitter: "Span | None" = None
    """Spreads due times: each firing is due up to this much after its nominal time, by a stable hash."""
    job_name: str = ""
    """Name of its jobs for people."""
    priority: int | None = None
    """Priority of its jobs, 1 (most urgent) to 5."""
    retry: "RetryPolicy | None" = None
    """How failed attempts of its jobs are tried again."""
    timeouts: "Timeouts | None" = None
    """Limits on time of its jobs."""
    concurrency_key: str = ""
    """Concurrency key of its jobs."""
    concurrency_limit: int | None = None
    """Limit of the concurrency key."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of its jobs."""

    def __post_init__(self) -> None:
        """Refuse a definition that does not say when to fire, or says it twice."""
        if sum([bool(self.cron), self.every is not None, self.once_at is not None]) != 1:
            raise ConfigurationError(f"schedule {self.name!r}: give exactly one of cron, every and once_at")
        if not self.cron and (self.time_zone or self.gap or self.fold):
            raise ConfigurationError(f"schedule {self.name!r}: time_zone, gap and fold belong to cron")
        if self.every is None and self.anchor is not None:
            raise ConfigurationError(f"schedule {self.name!r}: anchor belongs to every")
        for name in ("anchor", "once_at", "start_at", "end_at"):
            instant = getattr(self, name)
            if instant is not None and instant.tzinfo is None:
                raise ConfigurationError(f"{name}: {instant!r} has no time zone; give an aware datetime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as the server shows it. All instants are in UTC."""

    id: int
    namespace: str
    name: str
    spec: NewSchedule
    """Definition, with defaults filled in and the cron expression in canonical form; the payload is bytes."""
    payload_content_type: str
    paused: bool
    pause_note: str
    next_fire_at: datetime | None
    """Next nominal time; None if it has ended."""
    last_fired_at: datetime | None
    """Latest nominal time that made a job."""
    last_job_id: int | None
    last_outcome: "JobState | None"
    """State of the latest finished job it made."""
    fired_count: int
    skipped_counts: Mapping[str, int]
    """Firings that made no job, by reason."""
    created_at: datetime | None
    updated_at: datetime | None
    etag: str
    """Changes with every update; give it to `update_schedule` to update only what you have seen."""
    description: str
    """Words that explain the timing."""


class ScheduleChange(StrEnum):
    """What `ensure_schedules` did with one schedule."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsuredSchedule:
    """What became of one schedule of `ensure_schedules`."""

    name: str
    change: ScheduleChange
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePreview:
    """Coming firings of a definition."""

    firings: tuple[datetime, ...]
    """Nominal times, in UTC, ascending."""
    description: str
    """Words that explain the timing."""
    notes: tuple[str, ...]
    """Things worth knowing, for example that both day fields are restricted and either matches."""


class ScheduleOptions(TypedDict, total=False):
    """What can be said about a schedule in code beside its timing. All keys are described in `NewSchedule`."""

    gap: Gap | None
    fold: Fold | None
    anchor: datetime | None
    overlap: Overlap | None
    catch_up: CatchUp | None
    catch_up_window: "Span | None"
    start_at: datetime | None
    end_at: datetime | None
    jitter: "Span | None"
    job_name: str
    priority: int | None
    retry: "RetryPolicy | None"
    timeouts: "Timeouts | None"
    concurrency_key: str
    concurrency_limit: int | None
    labels: Mapping[str, str]
