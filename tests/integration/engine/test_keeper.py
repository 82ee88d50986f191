"""The keeper's round: what is idle is looked at less often, and what nobody told of is found all the same."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from server.app import Node
from server.domain.due import DueJob
from tests.support.nodes import running_node, submit
from tests.support.raw_worker import raw_worker


class Sweeps(Counter[int]):
    """Counts the sweeps of each partition from now on."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._sweep = node.store.sweep
        monkeypatch.setattr(node.store, "sweep", self.note)

    async def note(self, partition: int) -> Sequence[DueJob]:
        self[partition] += 1
        return await self._sweep(partition)


async def test_a_partition_in_which_nothing_waits_and_nothing_runs_is_looked_at_less_often(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(database, tmp_path, sweep="400ms") as node:
        # Far ahead: pending, and nothing else ever happens to it.
        await submit(node, "later", shard=0, delay=timedelta(hours=1))
        await asyncio.sleep(1.5)
        sweeps = Sweeps(node, monkeypatch)
        await asyncio.sleep(5.0)
        idle = [count for partition, count in sweeps.items() if partition != 0]
        assert len(idle) == len(node.engine.ownership.served_partitions()) - 1
        # At the full rate there would be twelve.
        assert max(idle) <= 6
        assert sweeps[0] >= max(idle) * 1.3


async def test_a_job_that_nobody_told_of_is_found_in_an_idle_partition(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_node(database, tmp_path, sweep="200ms") as node,
        raw_worker(node.address, {"work": 4}) as worker,
    ):
        await asyncio.sleep(1.0)
        monkeypatch.setattr(node.engine, "jobs_added", lambda jobs: None)
        [job_id] = await submit(node, "work", shard=9)
        [job] = await worker.next_jobs(1)
        assert job.job_id == job_id


async def test_a_job_in_an_idle_partition_waits_for_one_round_at_most(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_node(database, tmp_path, sweep="1s") as node,
        raw_worker(node.address, {"work": 4}) as worker,
    ):
        partition = node.engine.ownership.partition_of[9]
        # Its rest lasts for several rounds from here on.
        await node.engine.keeper.turn(partition)
        glances = 0
        look = node.store.pending_partitions

        async def glance(partitions: Sequence[int]) -> list[int]:
            nonlocal glances
            glances += 1
            return await look(partitions)

        monkeypatch.setattr(node.engine, "jobs_added", lambda jobs: None)
        monkeypatch.setattr(node.store, "pending_partitions", glance)
        [job_id] = await submit(node, "work", shard=9)
        [job] = await worker.next_jobs(1)
        assert job.job_id == job_id
        assert glances <= 2
