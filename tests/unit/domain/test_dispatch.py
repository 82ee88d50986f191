"""Topics, leases of topics, and the split of a cap over nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.dispatch import is_queue_lease, queue_lease, share_of_unfinished, topic_fault, topic_of
from worker_sdk import kafka_settings


@given(st.integers(1, 2**31 - 1))
def test_the_lease_of_a_topic_is_no_worker(handler_id: int) -> None:
    assert is_queue_lease(queue_lease(handler_id))
    assert not is_queue_lease(handler_id)


@given(st.integers(1, 1_000_000), st.lists(st.integers(0, 64), min_size=1, max_size=8))
def test_a_cap_is_split_over_nodes(cap: int, owned: list[int]) -> None:
    shards = max(1, sum(owned))
    shares = [share_of_unfinished(cap, one, shards) for one in owned]
    assert sum(shares) <= cap + len(owned)
    assert all((share > 0) == (one > 0) for share, one in zip(shares, owned, strict=True))


@pytest.mark.parametrize(
    ("namespace", "handler", "fits"),
    [("default", "email.send", True), ("a", "b_c-D.9", True), ("default", "a/b", False), ("n" * 63, "h" * 200, False)],
)
def test_both_sides_agree_on_topics(namespace: str, handler: str, fits: bool) -> None:
    fault = topic_fault(namespace, handler)
    assert (fault is None) == fits
    assert kafka_settings.topic_of(namespace, handler) == (topic_of(namespace, handler) if fits else None)
