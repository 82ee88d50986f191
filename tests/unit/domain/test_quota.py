"""Quotas: documents, rates, room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.quota import NO_QUOTAS, UNLIMITED, Quotas, RateBucket, Room, from_document, share, to_document


@pytest.mark.parametrize(
    "quotas", [NO_QUOTAS, Quotas(pending_jobs=5), Quotas(pending_jobs=1, pending_bytes=2, submit_rate=0.5, schedules=4)]
)
def test_quotas_survive_the_database(quotas: Quotas) -> None:
    assert from_document(to_document(quotas).encode()) == quotas


def test_no_quotas_are_the_same_object_and_newer_fields_are_passed_over() -> None:
    assert from_document(b"{}") is NO_QUOTAS
    assert from_document(b'{"schedules": 3, "later": 1}') == Quotas(schedules=3)


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 2)), max_size=100))
def test_no_more_than_the_rate_comes_through_for_long(rate: float, calls: list[tuple[int, float]]) -> None:
    """Over any time: the rate, the burst, and one batch that was let in on credit."""
    bucket = RateBucket(rate, 0.0)
    now, let_in, largest = 0.0, 0, 0
    for jobs, pause in calls:
        now += pause
        if bucket.take(jobs, now) == 0.0:
            let_in += jobs
            largest = max(largest, jobs)
        assert let_in <= rate * now + max(1.0, rate) + largest + 1e-6
    assert bucket.taken == let_in


def test_who_is_refused_is_told_when_to_come_back() -> None:
    bucket = RateBucket(10.0, 0.0)
    assert bucket.take(25, 0.0) == 0.0
    wait_s = bucket.take(1, 0.0)
    assert wait_s == pytest.approx(1.6)
    assert bucket.take(1, wait_s - 0.01) > 0
    assert bucket.take(1, wait_s + 0.001) == 0.0


def test_a_node_gets_what_the_others_leave_and_at_least_its_part() -> None:
    assert share(90.0, 3, 0.0) == 90.0
    assert share(90.0, 3, 50.0) == 40.0
    assert share(90.0, 3, 500.0) == 30.0
    assert share(90.0, 0, 90.0) == 90.0


def test_what_has_no_limit_is_always_there() -> None:
    assert Room.left(NO_QUOTAS, 10**9, 10**15) == Room(UNLIMITED, UNLIMITED)
    left = Room.left(Quotas(pending_jobs=10, pending_bytes=100), 4, 90)
    assert left == Room(6, 10)
    assert left.holds(6, 10)
    assert not left.holds(7, 0)
    assert not left.holds(1, 11)
    assert left.without(2, 4) == Room(4, 6)
    assert Room(7, 9).part(3) == Room(2, 3)
