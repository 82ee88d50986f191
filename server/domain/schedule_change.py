"""What becomes of a schedule when a user defines it (again): one pure decision for one schedule at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from server.domain.errors import InvalidInput
from server.domain.firing import NextFiring, on_create, on_resume, on_update
from server.domain.schedule import OnceSpec
from server.domain.schedule_times import next_nominal
from server.domain.stored_schedule import ScheduleDefinition, ScheduleDraft, StoredSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A schedule to be made."""

    name: str
    definition: ScheduleDefinition
    paused: bool
    next_fire_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A schedule to be changed: its definition, next firing, pause, and nominal times that are passed over by it."""

    stored: StoredSchedule
    definition: ScheduleDefinition
    paused: bool
    next_fire_at: datetime | None
    skipped: Mapping[str, int] = field(default_factory=dict)
    redefined: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A schedule to be deleted."""

    stored: StoredSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """A schedule that already is as asked for."""

    stored: StoredSchedule


ScheduleChange: TypeAlias = Creation | Revision | Removal | Unchanged


def create(draft: ScheduleDraft, now: datetime, *, paused: bool = False) -> Creation:
    """Make a schedule; `now` is the database clock."""
    definition = draft.settled(now)
    return Creation(
        name=draft.name,
        definition=definition,
        paused=paused,
        next_fire_at=on_create(definition.timing, now),
        created_at=now,
    )


def redefine(
    stored: StoredSchedule, draft: ScheduleDraft, now: datetime, *, resolve_again: bool = False
) -> ScheduleChange:
    """Give a schedule a new definition; an equal one changes nothing, unless its policies are to be resolved again.

    An unchanged timing keeps the next firing. Raise InvalidInput for another concurrency key, which would move the
    schedule to another shard, and for a one-time instant that lies at or before a firing that has happened.
    """
    old, new = stored.definition, draft.settled(stored.created_at)
    same = old.asks_the_same_as(new)
    if same and (not resolve_again or old == new):
        return Unchanged(stored=stored)
    if old.job.concurrency_key != new.job.concurrency_key:
        raise InvalidInput(
            "job.concurrency_key",
            new.job.concurrency_key or "",
            f"cannot be changed (it is {old.job.concurrency_key or ''!r}), for it decides where the schedule is kept; "
            "delete the schedule and create it again",
        )
    following = _behind_last_firing(stored, new, on_update(old.timing, new.timing, stored.next_fire_at, now))
    return Revision(
        stored=stored,
        definition=new,
        paused=stored.paused,
        next_fire_at=following.next_fire_at,
        skipped=_by_name(following),
    )


def resume(stored: StoredSchedule, now: datetime) -> ScheduleChange:
    """Let a paused schedule go on; its catch-up policy decides about what it missed."""
    if not stored.paused:
        return Unchanged(stored=stored)
    definition = stored.definition
    following = on_resume(definition.timing, stored.next_fire_at, definition.catch_up, now)
    return Revision(
        stored=stored,
        definition=definition,
        paused=False,
        next_fire_at=following.next_fire_at,
        skipped=_by_name(following),
        redefined=False,
    )


def _behind_last_firing(stored: StoredSchedule, new: ScheduleDefinition, following: NextFiring) -> NextFiring:
    """Keep the next firing behind the last one, so that no nominal time makes two jobs."""
    last, upcoming = stored.last_fired_at, following.next_fire_at
    if last is None or upcoming is None or upcoming > last:
        return following
    spec = new.timing.spec
    if isinstance(spec, OnceSpec) and spec != stored.definition.timing.spec:
        raise InvalidInput(
            "once_at",
            spec.at.isoformat(),
            f"must lie after the last firing, {last.isoformat()}; trigger the schedule to run its job now",
        )
    return replace(following, next_fire_at=next_nominal(new.timing, last))


def _by_name(following: NextFiring) -> dict[str, int]:
    return {reason.value: count for reason, count in following.skipped.items()}
