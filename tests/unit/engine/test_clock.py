"""The estimate of the database's clock."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.clock import JUMP_S, DatabaseClock, tick_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3600.0


def database_time(monotonic: float, ahead: float = HOUR) -> datetime:
    """A database whose clock is so far ahead of this process's monotonic clock, counted from 1970."""
    return EPOCH + timedelta(seconds=monotonic + ahead)


def estimate(clock: DatabaseClock) -> float:
    """Return how far ahead the clock believes the database to be, in seconds."""
    before = time.monotonic()
    ahead = (clock.now() - EPOCH).total_seconds() - before
    assert time.monotonic() - before < 1
    return ahead


def observe(clock: DatabaseClock, sent: float, round_trip: float, ahead: float = HOUR, share: float = 0.0) -> None:
    """A statement that took `round_trip`, and whose now() was taken after `share` of it."""
    clock.observe(database_time(sent + share * round_trip, ahead), sent, sent + round_trip)


def test_without_an_observation_this_machine_is_believed() -> None:
    assert abs((DatabaseClock().now() - datetime.now(UTC)).total_seconds()) < 0.1


def test_an_observation_sets_the_clock() -> None:
    clock = DatabaseClock()
    observe(clock, time.monotonic(), 0.002)
    assert abs(estimate(clock) - HOUR) < 0.01
    assert abs(clock.now_ms() / 1000 - clock.now().timestamp()) < 0.05


def test_a_tighter_round_trip_wins_over_a_loose_one() -> None:
    clock = DatabaseClock()
    start = time.monotonic()
    observe(clock, start, 0.0005)
    # now() was taken at the end of a wait of half a second, for a connection perhaps.
    observe(clock, start + 1, 0.5, share=1.0)
    assert abs(estimate(clock) - HOUR) < 0.01
    observe(clock, start + 2, 0.0004, ahead=HOUR + 0.02)
    assert abs(estimate(clock) - HOUR - 0.02) < 0.01


def test_drift_is_followed_in_time() -> None:
    clock = DatabaseClock()
    start = time.monotonic()
    observe(clock, start, 0.0002)
    # 50 ppm, and no round trip ever as tight as the first one.
    for step in range(1, 200):
        observe(clock, start + 10 * step, 0.001, ahead=HOUR + 0.0005 * step)
    assert abs(estimate(clock) - HOUR - 0.0995) < 0.01


@pytest.mark.parametrize("by", [-HOUR, -5.0, 5.0, HOUR])
def test_a_jump_is_noticed_and_followed_at_once(by: float) -> None:
    clock = DatabaseClock()
    start = time.monotonic()
    observe(clock, start, 0.0002)
    before = clock.jumped_at
    observe(clock, start + 5, 0.003, ahead=HOUR + by)
    assert clock.jumped_at == start + 5.003 > before
    assert abs(estimate(clock) - HOUR - by) < 0.01


def test_jitter_of_a_long_round_trip_is_no_jump() -> None:
    clock = DatabaseClock()
    start = time.monotonic()
    observe(clock, start, 0.0002)
    before = clock.jumped_at
    observe(clock, start + 5, 4.0, share=1.0)
    observe(clock, start + 10, 4.0, share=0.0)
    observe(clock, start + 15, 0.1, ahead=HOUR + 0.9 * JUMP_S)
    assert clock.jumped_at == before


@given(trips=st.lists(st.tuples(st.floats(0.0001, 0.2), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_error_is_within_the_round_trips(trips: list[tuple[float, float]]) -> None:
    """However the statement's now() falls into its round trip, the estimate is off by no more than one of them."""
    clock = DatabaseClock()
    sent = time.monotonic()
    for round_trip, share in trips:
        observe(clock, sent, round_trip, share=share)
        sent += round_trip + 0.01
    worst = max(round_trip for round_trip, _ in trips)
    assert abs(estimate(clock) - HOUR) <= worst + 0.01


@given(
    instant=st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    hours=st.integers(-12, 12),
)
def test_a_tick_never_lies_before_its_instant(instant: datetime, hours: int) -> None:
    """Rounded up: what is due at the tick is due. In whole numbers, so that no float can round it down."""
    tick = tick_of(instant)
    exact = (instant - EPOCH) / timedelta(microseconds=1)
    assert (tick - 1) * 1000 < exact <= tick * 1000
    assert tick_of(instant.astimezone(timezone(timedelta(hours=hours)))) == tick
