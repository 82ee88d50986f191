"""Back-off: its bounds at every size, and the evenness of its jitter."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.job import Backoff
from server.domain.retry import DELAY_LIMIT, delay, delay_bound

SECOND = timedelta(seconds=1)
ALMOST_ONE = 1 - 2**-53

draws = st.floats(0, ALMOST_ONE)
attempts = st.integers(1, 10**6)
spans = st.timedeltas(timedelta(0), DELAY_LIMIT)


@st.composite
def policies(draw: st.DrawFn) -> Backoff:
    initial, longest = sorted([draw(spans), draw(spans)])
    return Backoff(
        max_attempts=draw(attempts),
        initial=initial,
        multiplier=draw(st.one_of(st.just(1.0), st.floats(1, 1.001), st.floats(1, 1000))),
        maximum=longest,
    )


def test_bounds_double_from_a_second_up_to_an_hour_by_default() -> None:
    seconds = [delay_bound(Backoff(), attempt).total_seconds() for attempt in range(1, 15)]
    assert seconds == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_a_policy_may_stay_flat_or_not_wait_at_all() -> None:
    flat = Backoff(initial=5 * SECOND, multiplier=1.0)
    assert {delay_bound(flat, attempt) for attempt in (1, 2, 1000, 10**6)} == {5 * SECOND}
    at_once = Backoff(initial=timedelta(0), multiplier=1000.0)
    assert delay(at_once, 10**6, ALMOST_ONE) == timedelta(0)


@given(policy=policies(), attempt=attempts, draw=draws)
def test_every_delay_is_within_the_bound_and_the_bound_within_the_cap(
    policy: Backoff, attempt: int, draw: float
) -> None:
    bound = delay_bound(policy, attempt)
    assert policy.initial <= bound <= policy.maximum <= DELAY_LIMIT
    assert timedelta(0) <= delay(policy, attempt, draw) <= bound


@given(policy=policies(), attempt=st.integers(1, 10**6 - 1))
def test_the_bound_never_shrinks_from_try_to_try(policy: Backoff, attempt: int) -> None:
    assert delay_bound(policy, attempt) <= delay_bound(policy, attempt + 1)


@given(attempt=st.integers(1, 12), multiplier=st.floats(1, 10))
def test_the_bound_is_the_power_where_it_fits(attempt: int, multiplier: float) -> None:
    policy = Backoff(initial=timedelta(milliseconds=1), multiplier=multiplier, maximum=DELAY_LIMIT)
    expected = min(0.001 * multiplier ** (attempt - 1), DELAY_LIMIT.total_seconds())
    assert delay_bound(policy, attempt).total_seconds() == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(policy=policies(), attempt=attempts, one=draws, other=draws)
def test_a_greater_draw_never_waits_less(policy: Backoff, attempt: int, one: float, other: float) -> None:
    assert delay(policy, attempt, min(one, other)) <= delay(policy, attempt, max(one, other))


@pytest.mark.parametrize("attempt", [1, 5, 100])
def test_delays_are_spread_evenly_over_the_whole_span(attempt: int) -> None:
    """Full jitter: every tenth of [0, bound) gets its tenth of the draws, so mean and deviation are the even ones."""
    policy = Backoff()
    bound = delay_bound(policy, attempt)
    rnd = random.Random(attempt)
    parts = [delay(policy, attempt, rnd.random()) / bound for _ in range(20_000)]
    tenths = [sum(1 for part in parts if int(part * 10) == tenth) for tenth in range(10)]
    # Chi-squared with 9 degrees of freedom exceeds 27.9 in one of a thousand even samples; the seed is fixed.
    assert sum((count - 2000) ** 2 / 2000 for count in tenths) < 27.9
    mean = sum(parts) / len(parts)
    assert mean == pytest.approx(1 / 2, abs=0.01)
    assert sum((part - mean) ** 2 for part in parts) / len(parts) == pytest.approx(1 / 12, abs=0.003)


def test_retry_after_is_the_least_delay_and_may_exceed_the_policy() -> None:
    policy = Backoff(maximum=60 * SECOND)
    assert delay(policy, 1, 0.5, retry_after=90 * SECOND) == 90 * SECOND
    assert delay(policy, 6, 0.5, retry_after=3 * SECOND) == 16 * SECOND
    assert delay(policy, 1, 0.5, retry_after=timedelta(days=-3)) == SECOND / 2
    assert delay(policy, 1, 0.5, retry_after=timedelta.max) == timedelta(days=30)


@pytest.mark.parametrize("draw", [-0.1, 1.0, float("nan")])
def test_a_draw_outside_its_range_is_a_bug_of_the_caller(draw: float) -> None:
    with pytest.raises(ValueError, match="draw"):
        delay(Backoff(), 1, draw)


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="attempt"):
        delay(Backoff(), 0, 0.5)


@given(
    initial=st.timedeltas(),
    multiplier=st.floats(allow_nan=False),
    maximum=st.timedeltas(),
    attempt=attempts,
    draw=draws,
)
def test_whatever_is_stored_a_delay_comes_out(
    initial: timedelta, multiplier: float, maximum: timedelta, attempt: int, draw: float
) -> None:
    odd = Backoff(initial=initial, multiplier=multiplier, maximum=maximum)
    assert timedelta(0) <= delay(odd, attempt, draw) <= DELAY_LIMIT
