"""Which due nominal times of a schedule become jobs: one pure decision for one schedule at a time.

A schedule stores `next_fire_at`, the first nominal time that has not been decided on. `plan_firings` decides on it and
on all later ones up to now; it returns the jobs to insert, the new `next_fire_at` (which never moves back) and a count
of every nominal time that becomes no job. Applied with a compare-and-set on the stored `next_fire_at`, no nominal time
is decided on twice, and none is lost: fired + skipped = all nominal times from the old to the new `next_fire_at`.

The rules, in this order:

1. A nominal time is *on time* up to `grace` (10 s) late, otherwise *missed*. On-time ones are not subject to catch-up.
2. Missed ones go by the catch-up policy. NONE: none fires. ONE: the newest one fires if it is inside the window and
   nothing on time fires in its place. ALL: those inside the window fire, the newest `catch_up_limit` (1000) of them.
3. What is left goes by the overlap policy, the oldest first, each firing counting as live for the next one. SKIP: fires
   only if nothing is live. BUFFER_ONE: fires only if nothing is pending. CANCEL_RUNNING: only the newest fires, for it
   would cancel the others at once. BUFFER_ALL and ALLOW: all fire, at most `batch` (100) in one plan; then the new
   `next_fire_at` is still due, and the next call goes on.

Work is bounded by the batch and, by arithmetic instead of enumeration, by the days since `next_fire_at`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import assert_never

from server.domain.errors import InvalidInput
from server.domain.schedule import CatchUpPolicy, OnceSpec, OverlapPolicy, ScheduleTiming
from server.domain.schedule_times import count_nominals, jitter_offset, last_nominal, next_nominal

MAX_BATCH = 100

_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


class SkipReason(StrEnum):
    """Why a nominal time became no job; the keys of a schedule's counters."""

    OVERLAP = "overlap"
    """A job of the schedule was live, or a newer firing took its place under CANCEL_RUNNING."""
    BUFFER_FULL = "buffer_full"
    """A firing was waiting already."""
    CATCH_UP = "catch_up"
    """Missed: older than the window, not wanted (NONE), or made good by a newer one (ONE)."""
    LIMIT = "limit"
    """Missed, and beyond the limit of ALL."""
    PAUSED = "paused"
    """Came while the schedule was paused, and missed firings are not wanted."""
    UPDATED = "updated"
    """Was due when the timing of the schedule was replaced."""
    ENDED = "ended"
    """Lies at or after the end of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """What the decision depends on. `next_nominal` is the stored `next_fire_at`, None if the schedule has ended.

    `live_running` and `live_pending` count the unfinished jobs that earlier firings made. Raise InvalidInput for a
    negative window or a limit below 1.
    """

    schedule_id: int
    timing: ScheduleTiming
    next_nominal: datetime | None
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catch_up: CatchUpPolicy = CatchUpPolicy.ONE
    catch_up_window: timedelta = timedelta(days=1)
    catch_up_limit: int = 1000
    grace: timedelta = timedelta(seconds=10)
    live_running: int = 0
    live_pending: int = 0

    def __post_init__(self) -> None:
        if self.catch_up_window < timedelta():
            raise InvalidInput("catch_up_window", self.catch_up_window, "must not be negative")
        if self.catch_up_limit < 1:
            raise InvalidInput("catch_up_limit", self.catch_up_limit, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """A job to insert: its `scheduled_for` and its due time, in UTC."""

    nominal: datetime
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringPlan:
    """What to write: the jobs, oldest first, the new `next_fire_at` (None: ended) and what was skipped.

    `cancel_live` asks for the cancellation of the schedule's live jobs. If `next_fire_at` is still due, plan again.
    """

    firings: tuple[Firing, ...] = ()
    next_fire_at: datetime | None
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)
    cancel_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFiring:
    """A new `next_fire_at` (None: ended) and the due nominal times that are passed over by it."""

    next_fire_at: datetime | None
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)


def plan_firings(state: ScheduleState, now: datetime, *, batch: int = MAX_BATCH) -> FiringPlan:
    """Decide on all nominal times up to `now`, but fire at most `batch` of them. See the module for the rules."""
    pointer, timing = state.next_nominal, state.timing
    if pointer is None or pointer > now:
        return FiringPlan(next_fire_at=pointer)
    if timing.end_at is not None and pointer >= timing.end_at:
        return FiringPlan(next_fire_at=None, skipped={SkipReason.ENDED: 1})
    due = _Due(timing=timing, first=pointer, now=now)
    skipped: dict[SkipReason, int] = {}
    first = _after_catch_up(state, due, skipped)
    if first is None:
        return FiringPlan(next_fire_at=next_nominal(timing, now), skipped=skipped)
    return _after_overlap(state, due.starting_at(first), skipped, batch)


def on_create(timing: ScheduleTiming, now: datetime) -> datetime | None:
    """Return the first `next_fire_at`: the next nominal time after `now`; a one-time instant even if it has passed.

    A one-time instant in the past goes by the catch-up policy like any missed firing. Also right after a change of
    the timing.
    """
    if isinstance(timing.spec, OnceSpec):
        return next_nominal(timing, timing.spec.at - _TICK)
    return next_nominal(timing, now)


def on_resume(
    timing: ScheduleTiming, next_fire_at: datetime | None, catch_up: CatchUpPolicy, now: datetime
) -> NextFiring:
    """Return where a paused schedule goes on.

    ONE and ALL keep the pointer, so that `plan_firings` decides about what the pause missed. NONE goes on after now.
    """
    if next_fire_at is None or next_fire_at > now or catch_up is not CatchUpPolicy.NONE:
        return NextFiring(next_fire_at=next_fire_at)
    missed = _Due(timing=timing, first=next_fire_at, now=now).count()
    return NextFiring(next_fire_at=next_nominal(timing, now), skipped={SkipReason.PAUSED: missed})


def on_update(old: ScheduleTiming, new: ScheduleTiming, next_fire_at: datetime | None, now: datetime) -> NextFiring:
    """Return where a schedule goes on after its timing was set to `new`.

    Unchanged if only the jitter differs, or if the spec is the same and a due nominal time still lies between start and
    end; otherwise as at creation.
    """
    if replace(old, jitter=new.jitter) == new:
        return NextFiring(next_fire_at=next_fire_at)
    if next_fire_at is None or next_fire_at > now:
        return NextFiring(next_fire_at=on_create(new, now))
    if old.spec == new.spec and _in_range(new, next_fire_at):
        return NextFiring(next_fire_at=next_fire_at)
    passed_over = _Due(timing=old, first=next_fire_at, now=now).count()
    return NextFiring(next_fire_at=on_create(new, now), skipped={SkipReason.UPDATED: passed_over})


def _in_range(timing: ScheduleTiming, nominal: datetime) -> bool:
    started = timing.start_at is None or timing.start_at <= nominal
    return started and (timing.end_at is None or nominal < timing.end_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """The due nominal times: `first` (≤ now) and all later ones up to `now`.

    `first` is taken as it is stored: after an update of the zone data it may be no nominal time any more.
    """

    timing: ScheduleTiming
    first: datetime
    now: datetime

    def count(self) -> int:
        return 1 + count_nominals(self.timing, self.first, self.now)

    def newest(self) -> datetime:
        following = next_nominal(self.timing, self.first)
        if following is None or following > self.now:
            return self.first
        return max(last_nominal(self.timing, self.now) or self.first, self.first)

    def at_or_after(self, instant: datetime) -> datetime | None:
        """Return the earliest one ≥ `instant`."""
        if instant <= self.first:
            return self.first
        found = next_nominal(self.timing, instant - _TICK)
        return found if found is not None and found <= self.now else None

    def starting_at(self, first: datetime) -> "_Due":
        return replace(self, first=first)

    def count_before(self, nominal: datetime | None) -> int:
        """Count those before `nominal`, which is one of them; all of them if it is None."""
        return self.count() - (0 if nominal is None else self.starting_at(nominal).count())

    def newest_ones(self, count: int) -> datetime:
        """Return the earliest of the newest `count`, of which there are more. Found by halving the time."""
        low, high = self.first, self.now
        while high - low > _SECOND:
            middle = low + (high - low) / 2
            if count_nominals(self.timing, middle, self.now) > count:
                low = middle
            else:
                high = middle
        return next_nominal(self.timing, high) or self.first


def _after_catch_up(state: ScheduleState, due: _Due, skipped: dict[SkipReason, int]) -> datetime | None:
    """Return the first nominal time that the catch-up policy lets through, with all later ones; count the others."""
    on_time = due.now - state.grace
    window = due.now - max(state.catch_up_window, state.grace)
    match state.catch_up:
        case CatchUpPolicy.NONE:
            first = due.at_or_after(on_time)
        case CatchUpPolicy.ONE:
            first = due.at_or_after(on_time)
            if first is None and (newest := due.newest()) >= window:
                first = newest
        case CatchUpPolicy.ALL:
            first = due.at_or_after(window)
        case _:
            assert_never(state.catch_up)
    if first != due.first:
        _tally(skipped, SkipReason.CATCH_UP, due.count_before(first))
    if first is not None and state.catch_up is CatchUpPolicy.ALL:
        return _within_limit(state.catch_up_limit, due.starting_at(first), skipped)
    return first


def _within_limit(limit: int, due: _Due, skipped: dict[SkipReason, int]) -> datetime:
    excess = due.count() - limit
    if excess <= 0:
        return due.first
    _tally(skipped, SkipReason.LIMIT, excess)
    return due.newest_ones(limit)


def _after_overlap(state: ScheduleState, due: _Due, skipped: dict[SkipReason, int], batch: int) -> FiringPlan:
    """Fire what the overlap policy lets through, oldest first; count the rest, or leave it to the next plan."""
    rest: SkipReason | None = None
    match state.overlap:
        case OverlapPolicy.ALLOW | OverlapPolicy.BUFFER_ALL:
            room = batch
        case OverlapPolicy.SKIP:
            room, rest = (0 if state.live_running + state.live_pending else 1), SkipReason.OVERLAP
        case OverlapPolicy.BUFFER_ONE:
            room, rest = (0 if state.live_pending else 1), SkipReason.BUFFER_FULL
        case OverlapPolicy.CANCEL_RUNNING:
            newest = due.newest()
            _tally(skipped, SkipReason.OVERLAP, due.count_before(newest))
            due, room = due.starting_at(newest), 1
        case _:
            assert_never(state.overlap)
    firings, pointer = _fire(state, due, room)
    if rest is not None and pointer is not None and pointer <= due.now:
        _tally(skipped, rest, due.starting_at(pointer).count())
        pointer = next_nominal(state.timing, due.now)
    live = state.live_running + state.live_pending > 0
    cancel_live = state.overlap is OverlapPolicy.CANCEL_RUNNING and live and bool(firings)
    return FiringPlan(firings=firings, next_fire_at=pointer, skipped=skipped, cancel_live=cancel_live)


def _fire(state: ScheduleState, due: _Due, room: int) -> tuple[tuple[Firing, ...], datetime | None]:
    """Return up to `room` firings and the nominal time that follows them."""
    firings: list[Firing] = []
    nominal: datetime | None = due.first
    while nominal is not None and nominal <= due.now and len(firings) < room:
        following = next_nominal(state.timing, nominal)
        offset = jitter_offset(state.schedule_id, nominal, state.timing.jitter, following)
        firings.append(Firing(nominal=nominal.astimezone(UTC), due_at=nominal.astimezone(UTC) + offset))
        nominal = following
    return tuple(firings), nominal


def _tally(skipped: dict[SkipReason, int], reason: SkipReason, count: int) -> None:
    if count:
        skipped[reason] = skipped.get(reason, 0) + count
