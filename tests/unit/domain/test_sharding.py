"""Ids and the shards that they carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.sharding import make_id, partition_of, shard_of, shard_of_id

COUNTS = [1 << n for n in range(11)]
parts = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4)


@given(sequence=st.integers(0, 2**51 - 1), shard=st.integers(0, 4095))
def test_an_id_carries_its_shard(sequence: int, shard: int) -> None:
    made = make_id(sequence, shard)
    assert shard_of_id(made) == shard
    assert made >> 12 == sequence
    assert 0 <= made < 2**63


@given(first=st.integers(0, 2**40), later=st.integers(1, 2**20), shards=st.tuples(*[st.integers(0, 1023)] * 2))
def test_ids_grow_with_their_sequence_whatever_the_shard(first: int, later: int, shards: tuple[int, int]) -> None:
    assert make_id(first, shards[0]) < make_id(first + later, shards[1])


@given(count=st.sampled_from(COUNTS), key=parts)
def test_a_key_has_one_shard_within_range(count: int, key: list[str]) -> None:
    shard = shard_of(count, *key)
    assert 0 <= shard < count
    assert shard_of(count, *key) == shard
    # With half the shards, a key stays in its half's counterpart: counts are powers of two.
    assert shard_of(max(1, count // 2), *key) == shard % max(1, count // 2)


def test_keys_spread_evenly() -> None:
    hits = [0] * 64
    for number in range(6400):
        hits[shard_of(64, "default", f"customer-{number}")] += 1
    assert min(hits) > 50
    assert max(hits) < 160


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("ab",)),
        (("a", "b"), ("a\x1fb",)),
        (("a", ""), ("", "a")),
        (("1:a",), ("a",)),
        (("a\x1f1:b",), ("a", "b")),
    ],
)
def test_lists_of_parts_do_not_collide(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Not even with a trillion shards, which shows that the texts differ, and not only by luck their prefixes."""
    assert shard_of(1 << 32, *one) != shard_of(1 << 32, *other)


@pytest.mark.parametrize(("shards", "partitions"), [(64, 16), (64, 1), (64, 64), (1024, 32), (1, 1)])
def test_partitions_hold_equal_contiguous_ranges(shards: int, partitions: int) -> None:
    found = [partition_of(shard, shards=shards, partitions=partitions) for shard in range(shards)]
    assert found == sorted(found)
    assert [found.count(number) for number in range(partitions)] == [shards // partitions] * partitions
