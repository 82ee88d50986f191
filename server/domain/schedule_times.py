"""Computing with the nominal times of a schedule: the next, the last, how many, and the jitter of each.

Nominal times are at least a second apart.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import assert_never

from server.domain.cron_walk import count_firings, next_after, previous_before
from server.domain.schedule import CronSpec, IntervalSpec, OnceSpec, ScheduleTiming, TimingSpec
from server.domain.zones import load_zone

_TICK = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def next_nominal(timing: ScheduleTiming, after: datetime) -> datetime | None:
    """Return the first nominal time strictly later than `after`, in UTC; None if the schedule ends before."""
    found = _next(timing.spec, _lower_bound(timing, after))
    if found is None or (timing.end_at is not None and found >= timing.end_at):
        return None
    return found


def last_nominal(timing: ScheduleTiming, until: datetime) -> datetime | None:
    """Return the last nominal time ≤ `until`, in UTC; None if there is none."""
    found = _last(timing.spec, _upper_bound(timing, until))
    if found is None or (timing.start_at is not None and found < timing.start_at):
        return None
    return found


def count_nominals(timing: ScheduleTiming, after: datetime, until: datetime) -> int:
    """Count the nominal times in (after, until]. Work grows with the days between, not with the nominal times."""
    lower, upper = _lower_bound(timing, after), _upper_bound(timing, until)
    if upper <= lower:
        return 0
    match timing.spec:
        case CronSpec() as cron:
            zone = load_zone(cron.time_zone)
            return count_firings(cron.expression, zone, lower, upper, gap=cron.gap, fold=cron.fold)
        case IntervalSpec() as interval:
            return (upper - interval.anchor) // interval.every - (lower - interval.anchor) // interval.every
        case OnceSpec() as once:
            return int(lower < once.at <= upper)
        case _:
            assert_never(timing.spec)


def jitter_offset(
    schedule_id: int, nominal: datetime, jitter: timedelta, following_nominal: datetime | None
) -> timedelta:
    """Return how long after `nominal` a firing is due: in [0, jitter), and short of the following nominal time.

    A hash of the schedule and the nominal time, so it is the same on every node and after every restart, spread
    evenly over schedules, and another one for each firing.
    """
    span = jitter if following_nominal is None else min(jitter, following_nominal - nominal)
    if span <= timedelta():
        return timedelta()
    key = f"{schedule_id}:{(nominal - _EPOCH) // _TICK}".encode()
    draw = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return timedelta(microseconds=(span // _TICK) * draw >> 64)


def _next(spec: TimingSpec, after: datetime) -> datetime | None:
    match spec:
        case CronSpec():
            return next_after(spec.expression, load_zone(spec.time_zone), after, gap=spec.gap, fold=spec.fold)
        case IntervalSpec():
            return _nth(spec, (after - spec.anchor) // spec.every + 1)
        case OnceSpec():
            return spec.at.astimezone(UTC) if spec.at > after else None
        case _:
            assert_never(spec)


def _last(spec: TimingSpec, until: datetime) -> datetime | None:
    match spec:
        case CronSpec():
            before = until + _TICK
            return previous_before(spec.expression, load_zone(spec.time_zone), before, gap=spec.gap, fold=spec.fold)
        case IntervalSpec():
            return _nth(spec, (until - spec.anchor) // spec.every)
        case OnceSpec():
            return spec.at.astimezone(UTC) if spec.at <= until else None
        case _:
            assert_never(spec)


def _nth(interval: IntervalSpec, n: int) -> datetime | None:
    """Return the n-th nominal time, None if it lies outside the calendar."""
    try:
        return interval.anchor.astimezone(UTC) + n * interval.every
    except OverflowError:
        return None


def _lower_bound(timing: ScheduleTiming, after: datetime) -> datetime:
    """Return the instant that nominal times have to be later than."""
    return after if timing.start_at is None else max(after, timing.start_at - _TICK)


def _upper_bound(timing: ScheduleTiming, until: datetime) -> datetime:
    """Return the last instant that nominal times may have."""
    return until if timing.end_at is None else min(until, timing.end_at - _TICK)
