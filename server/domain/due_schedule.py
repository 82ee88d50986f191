"""Schedules that are due, and the orders to fire them, as the engine and the store talk about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from server.domain.due import DueJob
from server.domain.firing import FiringPlan, ScheduleState
from server.domain.sharding import shard_of_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A schedule whose `next_fire_at` has come, and what its firing depends on.

    `payload_bytes` is the size of the payload of its jobs, which itself stays in the database.
    """

    state: ScheduleState
    version: int
    payload_bytes: int

    @property
    def schedule_id(self) -> int:
        """Identity of the schedule."""
        return self.state.schedule_id

    @property
    def shard(self) -> int:
        """The shard that the schedule and its jobs live in."""
        return shard_of_id(self.state.schedule_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedules:
    """What was found due: the schedules, those that this version cannot read, and the database clock.

    `unreadable` has the reason by id; `now` is None only if nothing was found.
    """

    schedules: list[DueSchedule]
    unreadable: Mapping[int, str]
    now: datetime | None

    @property
    def found(self) -> int:
        """How many rows were due."""
        return len(self.schedules) + len(self.unreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTimes:
    """The earliest `next_fire_at` by shard, of shards that have one, and the database clock (None if there is none)."""

    by_shard: Mapping[int, datetime]
    now: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FireOrder:
    """A decision about one due schedule, to be applied if the schedule still is as it was read."""

    due: DueSchedule
    plan: FiringPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What a batch of orders did: shards that still were ours, schedules that moved on, jobs that were made."""

    live_shards: frozenset[int]
    schedule_ids: frozenset[int]
    jobs: list[DueJob]
