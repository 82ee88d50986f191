"""Which shards are served, and what a fenced statement's answer says about them."""

from server.engine.ownership import Ownership

PARTITION_OF = [shard // 4 for shard in range(16)]


def owning(*epochs: tuple[int, int]) -> tuple[Ownership, list[int]]:
    ownership = Ownership(PARTITION_OF)
    fenced: list[int] = []
    ownership.on_fenced = fenced.append
    for shard, epoch in epochs:
        ownership.add(shard, epoch)
    return ownership, fenced


def test_a_shard_that_a_statement_did_not_find_is_dropped_and_told_of() -> None:
    ownership, fenced = owning((0, 5), (1, 7), (2, 9))
    ownership.check([(0, 5), (1, 7)], frozenset({0}))
    assert ownership.epochs == {0: 5, 2: 9}
    assert fenced == [1]


def test_shards_that_were_not_asked_for_are_kept() -> None:
    ownership, fenced = owning((0, 5), (1, 7))
    ownership.check([(0, 5)], frozenset({0}))
    ownership.check([], frozenset())
    assert (ownership.epochs, fenced) == ({0: 5, 1: 7}, [])


def test_an_answer_to_an_older_epoch_says_nothing_about_the_present_one() -> None:
    """The shard was fenced in anew, or its epoch raised after an unknown outcome, while the statement was under way."""
    ownership, fenced = owning((0, 6))
    ownership.check([(0, 5)], frozenset())
    assert (ownership.epochs, fenced) == ({0: 6}, [])


def test_a_shard_that_is_not_served_any_more_is_not_told_of_again() -> None:
    ownership, fenced = owning((0, 5))
    ownership.remove(0)
    ownership.remove(0)
    ownership.check([(0, 5)], frozenset())
    assert fenced == []


def test_shards_are_listed_by_partition() -> None:
    ownership, _ = owning((6, 1), (4, 2), (15, 3))
    assert ownership.partitions == 4
    assert ownership.of_partition(1) == [(4, 2), (6, 1)]
    assert ownership.of_partition(0) == []
    assert ownership.served_partitions() == [1, 3]


async def test_each_partition_has_a_lane_of_its_own() -> None:
    ownership, _ = owning()
    async with ownership.lane(0):
        assert ownership.lane(0).locked()
        assert not ownership.lane(1).locked()
        async with ownership.lane(1):
            pass
    assert not ownership.lane(0).locked()
