"""Back-off: its bounds at every size, the evenness of its jitter, and the decision after a failed try."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.errors import InvalidInput
from server.domain.retry import DELAY_LIMIT, Final, FinalReason, Retry, RetryPolicy, decide, delay, delay_bound

NOW = datetime(2026, 3, 8, 7, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ALMOST_ONE = 1 - 2**-53

draws = st.floats(0, ALMOST_ONE)
attempts = st.integers(1, 10**6)
spans = st.timedeltas(timedelta(0), DELAY_LIMIT)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    initial, longest = sorted([draw(spans), draw(spans)])
    return RetryPolicy(
        max_attempts=draw(attempts),
        initial_delay=initial,
        multiplier=draw(st.one_of(st.just(1.0), st.floats(1, 1.001), st.floats(1, 1000))),
        max_delay=longest,
    )


def test_bounds_double_from_a_second_up_to_an_hour_by_default() -> None:
    seconds = [delay_bound(RetryPolicy(), attempt).total_seconds() for attempt in range(1, 15)]
    assert seconds == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_a_policy_may_stay_flat_or_not_wait_at_all() -> None:
    flat = RetryPolicy(initial_delay=5 * SECOND, multiplier=1.0)
    assert {delay_bound(flat, attempt) for attempt in (1, 2, 1000, 10**6)} == {5 * SECOND}
    at_once = RetryPolicy(initial_delay=timedelta(0), multiplier=1000.0)
    assert delay(at_once, 10**6, ALMOST_ONE) == timedelta(0)


@given(policy=policies(), attempt=attempts, draw=draws)
def test_every_delay_is_within_the_bound_and_the_bound_within_the_cap(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    bound = delay_bound(policy, attempt)
    assert policy.initial_delay <= bound <= policy.max_delay <= DELAY_LIMIT
    assert timedelta(0) <= delay(policy, attempt, draw) <= bound


@given(policy=policies(), attempt=st.integers(1, 10**6 - 1))
def test_the_bound_never_shrinks_from_try_to_try(policy: RetryPolicy, attempt: int) -> None:
    assert delay_bound(policy, attempt) <= delay_bound(policy, attempt + 1)


@given(attempt=st.integers(1, 12), multiplier=st.floats(1, 10))
def test_the_bound_is_the_power_where_it_fits(attempt: int, multiplier: float) -> None:
    policy = RetryPolicy(initial_delay=timedelta(milliseconds=1), multiplier=multiplier, max_delay=DELAY_LIMIT)
    expected = min(0.001 * multiplier ** (attempt - 1), DELAY_LIMIT.total_seconds())
    assert delay_bound(policy, attempt).total_seconds() == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(policy=policies(), attempt=attempts, one=draws, other=draws)
def test_a_greater_draw_never_waits_less(policy: RetryPolicy, attempt: int, one: float, other: float) -> None:
    assert delay(policy, attempt, min(one, other)) <= delay(policy, attempt, max(one, other))


@pytest.mark.parametrize("attempt", [1, 5, 100])
def test_delays_are_spread_evenly_over_the_whole_span(attempt: int) -> None:
    """Full jitter: every tenth of [0, bound) gets its tenth of the draws, so mean and deviation are the even ones."""
    policy = RetryPolicy()
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
    policy = RetryPolicy(max_delay=60 * SECOND)
    assert delay(policy, 1, 0.5, retry_after=90 * SECOND) == 90 * SECOND
    assert delay(policy, 6, 0.5, retry_after=3 * SECOND) == 16 * SECOND
    assert delay(policy, 1, 0.5, retry_after=timedelta(days=-3)) == SECOND / 2
    assert delay(policy, 1, 0.5, retry_after=timedelta.max) == timedelta(days=30)


@pytest.mark.parametrize("draw", [-0.1, 1.0, float("nan")])
def test_a_draw_outside_its_range_is_a_bug_of_the_caller(draw: float) -> None:
    with pytest.raises(ValueError, match="draw"):
        delay(RetryPolicy(), 1, draw)


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="attempt"):
        delay(RetryPolicy(), 0, 0.5)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("max_attempts", 0, "from 1 to 1000000"),
        ("max_attempts", 1_000_001, "from 1 to 1000000"),
        ("multiplier", 0.5, "from 1 to 1000"),
        ("multiplier", float("nan"), "from 1 to 1000"),
        ("multiplier", float("inf"), "from 1 to 1000"),
        ("initial_delay", timedelta(seconds=-1), "from 0 to max_delay"),
        ("initial_delay", timedelta(hours=2), "from 0 to max_delay, which is 1:00:00"),
        ("max_delay", timedelta(days=31), "from 0 to 30 days"),
        ("max_delay", timedelta(seconds=-1), "from 0 to 30 days"),
        ("non_retryable_error_types", frozenset({""}), "1 to 200 characters"),
        ("non_retryable_error_types", frozenset({"x" * 201}), "1 to 200 characters"),
        ("non_retryable_error_types", frozenset(map(str, range(101))), "at most 100 types"),
    ],
)
def test_an_impossible_policy_is_refused_with_field_value_and_remedy(field: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        RetryPolicy(**{field: value})
    assert caught.value.field == f"retry.{field}"
    assert reason in caught.value.reason
    assert caught.value.reason in str(caught.value)


def decided(**changes: Any) -> Retry | Final:
    failure: dict[str, Any] = {"attempt": 1, "retryable": True, "error_type": "OSError", "draw": 0.5}
    return decide(**{"policy": RetryPolicy(), "now": NOW, **failure, **changes})


def test_a_failed_try_is_tried_again_after_the_delay() -> None:
    assert decided() == Retry(delay=SECOND / 2)
    assert decided(attempt=3) == Retry(delay=2 * SECOND)
    assert decided(retry_after=timedelta(days=2)) == Retry(delay=timedelta(days=2))


def test_the_last_try_is_final() -> None:
    assert decided(attempt=4) == Final(reason=FinalReason.ATTEMPTS_EXHAUSTED)
    assert decided(attempt=9) == Final(reason=FinalReason.ATTEMPTS_EXHAUSTED)
    assert decided(policy=RetryPolicy(max_attempts=1)) == Final(reason=FinalReason.ATTEMPTS_EXHAUSTED)


def test_the_worker_or_the_policy_may_end_it_early() -> None:
    policy = RetryPolicy(non_retryable_error_types=frozenset({"ValueError"}))
    assert decided(retryable=False, retry_after=SECOND) == Final(reason=FinalReason.NOT_RETRYABLE)
    assert decided(policy=policy, error_type="ValueError") == Final(reason=FinalReason.ERROR_TYPE)
    assert decided(policy=policy, error_type="OSError") == Retry(delay=SECOND / 2)


def test_no_try_starts_at_or_after_the_deadline() -> None:
    assert decided(deadline_at=NOW + SECOND / 2) == Final(reason=FinalReason.DEADLINE)
    assert decided(deadline_at=NOW - SECOND) == Final(reason=FinalReason.DEADLINE)
    assert decided(deadline_at=NOW + SECOND) == Retry(delay=SECOND / 2)
    # Near the end of the calendar too, where NOW + delay would not exist.
    end = datetime.max.replace(tzinfo=UTC)
    assert decided(now=end, deadline_at=end, retry_after=timedelta.max) == Final(reason=FinalReason.DEADLINE)


@given(
    policy=policies(),
    attempt=attempts,
    draw=draws,
    retry_after=st.none() | st.timedeltas(),
    deadline_in=st.none() | st.timedeltas(timedelta(days=-1), timedelta(days=60)),
)
def test_a_decision_to_retry_keeps_every_limit(
    policy: RetryPolicy, attempt: int, draw: float, retry_after: timedelta | None, deadline_in: timedelta | None
) -> None:
    deadline_at = None if deadline_in is None else NOW + deadline_in
    decision = decided(policy=policy, attempt=attempt, draw=draw, retry_after=retry_after, deadline_at=deadline_at)
    match decision:
        case Retry(delay=wait):
            assert attempt < policy.max_attempts
            assert timedelta(0) <= wait <= DELAY_LIMIT
            assert retry_after is None or wait >= min(retry_after, DELAY_LIMIT)
            assert deadline_at is None or NOW + wait < deadline_at
        case Final(reason=reason):
            exhausted = attempt >= policy.max_attempts
            assert reason is (FinalReason.ATTEMPTS_EXHAUSTED if exhausted else FinalReason.DEADLINE)
            assert exhausted or deadline_at is not None
