"""Schedules as they are kept: the definition that a user gave, and where it stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from server.domain.job import JobState, NewJob
from server.domain.schedule import CatchUpPolicy, IntervalSpec, OverlapPolicy, ScheduleTiming

DEFAULT_CATCH_UP_WINDOW: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """What a schedule does, validated.

    `job` is the job of each firing with every policy resolved; `job_spec` is the JSON text of what was asked for, from
    which it was resolved, without the payload. Firings use `job`; whether two definitions ask for the same is decided
    by `job_spec`, so that a change of defaults in between makes no difference.
    """

    timing: ScheduleTiming
    job: NewJob
    job_spec: bytes
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catch_up: CatchUpPolicy = CatchUpPolicy.ONE
    catch_up_window: timedelta = DEFAULT_CATCH_UP_WINDOW

    def asks_the_same_as(self, other: "ScheduleDefinition") -> bool:
        """Whether both ask for the same; resolved policies are not looked at."""
        return self.job.payload == other.job.payload and replace(self, job=other.job) == other


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """A definition that was sent, of a schedule that may or may not exist.

    `anchored` is False if it is by interval and names no anchor: then the creation of the schedule is the anchor, and
    the one in `definition` only a placeholder.
    """

    name: str
    definition: ScheduleDefinition
    anchored: bool = True

    def settled(self, created_at: datetime) -> ScheduleDefinition:
        """Return the definition for a schedule that was created at `created_at`."""
        spec = self.definition.timing.spec
        if self.anchored or not isinstance(spec, IntervalSpec):
            return self.definition
        timing = replace(self.definition.timing, spec=replace(spec, anchor=created_at))
        return replace(self.definition, timing=timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """A schedule as it is stored. `version` grows with every change by a user, but not with firings.

    `last_fired_at` is the latest nominal time that made a job, `last_job_id` the latest job, `last_outcome` the state
    of the latest finished job; `skipped_counts` has the values of SkipReason as keys.
    """

    schedule_id: int
    namespace_id: int
    name: str
    definition: ScheduleDefinition
    version: int
    paused: bool
    pause_note: str
    next_fire_at: datetime | None
    last_fired_at: datetime | None
    last_job_id: int | None
    fired_count: int
    skipped_counts: Mapping[str, int] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime
    last_outcome: JobState | None = None
