"""Shards of one partition that start together: few statements, and none that was given up is served."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.app import Node
from server.domain.ending import RunningJob
from tests.support.nodes import Gate, running_node

PARTITION, SHARDS = 0, (0, 1, 2, 3)


class Reads:
    """Stands between the runner and the store: notes each read, and holds those that it is told to."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[int]] = []
        self.gate: Gate | None = None
        self._read = node.store.running_of_shards
        monkeypatch.setattr(node.store, "running_of_shards", self)

    async def __call__(self, partition: int, shards: Sequence[int]) -> dict[int, list[RunningJob]]:
        if partition == PARTITION:
            self.asked.append(list(shards))
        found = await self._read(partition, shards)
        if self.gate is not None and len(shards) > 1:
            await self.gate()
        return found


async def stopped(node: Node) -> dict[int, int]:
    """Stop the shards of a partition; return their epochs."""
    epochs = {shard: node.engine.ownership.epochs[shard] for shard in SHARDS}
    assert [shard for shard, _ in node.engine.ownership.of_partition(PARTITION)] == list(SHARDS)
    for shard in SHARDS:
        await node.engine.shards.stop(shard)
    return epochs


async def test_starts_that_come_together_are_carried_out_together(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(database, tmp_path, sweep="1h") as node:
        epochs = await stopped(node)
        reads = Reads(node, monkeypatch)
        await asyncio.gather(*(node.engine.shards.start(shard, epoch) for shard, epoch in epochs.items()))
        # The keeper may have looked as well, afterwards.
        assert reads.asked[:2] == [[0], [1, 2, 3]]
        assert dict(node.engine.ownership.of_partition(PARTITION)) == epochs


async def test_a_start_that_was_given_up_while_others_read_is_not_served(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(database, tmp_path, sweep="1h") as node:
        epochs = await stopped(node)
        reads = Reads(node, monkeypatch)
        reads.gate = Gate()
        starts = [asyncio.create_task(node.engine.shards.start(shard, epoch)) for shard, epoch in epochs.items()]
        await reads.gate.reached.wait()
        starts[2].cancel()
        await asyncio.wait([starts[2]])
        stop = asyncio.create_task(node.engine.shards.stop(2))
        await asyncio.sleep(0)
        reads.gate.opened.set()
        await asyncio.gather(*starts, stop, return_exceptions=True)
        assert [shard for shard, _ in node.engine.ownership.of_partition(PARTITION)] == [0, 1, 3]


async def test_if_the_one_that_reads_for_all_is_given_up_the_others_start_all_the_same(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(database, tmp_path, sweep="1h") as node:
        epochs = await stopped(node)
        reads = Reads(node, monkeypatch)
        reads.gate = Gate()
        starts = [asyncio.create_task(node.engine.shards.start(shard, epoch)) for shard, epoch in epochs.items()]
        await reads.gate.reached.wait()
        starts[1].cancel()
        reads.gate.opened.set()
        await asyncio.gather(*starts, return_exceptions=True)
        assert [shard for shard, _ in node.engine.ownership.of_partition(PARTITION)] == [0, 2, 3]
