"""What `next_fire_at` becomes when a schedule is created, resumed or updated."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from server.domain.cron import parse_cron
from server.domain.firing import NextFiring, SkipReason, on_create, on_resume, on_update
from server.domain.schedule import CatchUpPolicy, CronSpec, OnceSpec, ScheduleTiming

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = NOON + timedelta(minutes=30)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOURLY = ScheduleTiming(spec=CronSpec(expression=parse_cron("0 * * * *")))
MINUTELY = ScheduleTiming(spec=CronSpec(expression=parse_cron("* * * * *")))


def test_create_starts_after_now() -> None:
    assert on_create(HOURLY, NOW) == NOON + timedelta(hours=1)
    assert on_create(HOURLY, NOON) == NOON + timedelta(hours=1)


def test_create_does_not_fire_for_the_past() -> None:
    past = replace(HOURLY, start_at=NOON - timedelta(days=100))
    assert on_create(past, NOW) == NOON + timedelta(hours=1)


def test_create_waits_for_the_start() -> None:
    future = replace(HOURLY, start_at=NOON + timedelta(days=100))
    assert on_create(future, NOW) == NOON + timedelta(days=100)


def test_create_with_an_instant_that_has_just_passed() -> None:
    once = ScheduleTiming(spec=OnceSpec(at=NOON))
    assert on_create(once, NOON + SECOND) == NOON
    assert on_create(replace(once, end_at=NOON), NOON) is None


@pytest.mark.parametrize(
    ("catch_up", "next_fire_at", "skipped"),
    [
        (CatchUpPolicy.ONE, NOON - timedelta(hours=4), {}),
        (CatchUpPolicy.ALL, NOON - timedelta(hours=4), {}),
        (CatchUpPolicy.NONE, NOON + timedelta(hours=1), {SkipReason.PAUSED: 5}),
    ],
)
def test_resume(catch_up: CatchUpPolicy, next_fire_at: datetime, skipped: Mapping[SkipReason, int]) -> None:
    found = on_resume(HOURLY, NOON - timedelta(hours=4), catch_up, NOW)
    assert found == NextFiring(next_fire_at=next_fire_at, skipped=skipped)


@pytest.mark.parametrize("pointer", [None, NOON + timedelta(hours=1)])
def test_resume_before_anything_was_missed(pointer: datetime | None) -> None:
    found = on_resume(HOURLY, pointer, CatchUpPolicy.NONE, NOW)
    assert found == NextFiring(next_fire_at=pointer)


def test_update_keeps_the_pointer_of_an_unchanged_timing() -> None:
    same = ScheduleTiming(spec=CronSpec(expression=parse_cron("@hourly")), jitter=SECOND)
    assert on_update(HOURLY, same, NOON, NOW) == NextFiring(next_fire_at=NOON)


def test_update_of_the_spec_goes_on_after_now() -> None:
    pointer = NOON - timedelta(hours=2)
    found = on_update(HOURLY, MINUTELY, pointer, NOW)
    assert found == NextFiring(next_fire_at=NOW + MINUTE, skipped={SkipReason.UPDATED: 3})
    found = on_update(HOURLY, MINUTELY, NOON + timedelta(hours=1), NOW)
    assert found == NextFiring(next_fire_at=NOW + MINUTE)


def test_update_of_the_end() -> None:
    ended = replace(HOURLY, end_at=NOON)
    assert on_update(ended, HOURLY, None, NOW).next_fire_at == NOON + timedelta(hours=1)
    assert on_update(HOURLY, ended, NOON + timedelta(hours=1), NOW).next_fire_at is None
    later = replace(HOURLY, end_at=NOON + timedelta(days=1))
    assert on_update(HOURLY, later, NOON, NOW) == NextFiring(next_fire_at=NOON)
    found = on_update(HOURLY, ended, NOON, NOW)
    assert found == NextFiring(next_fire_at=None, skipped={SkipReason.UPDATED: 1})
