"""Workers learn of all nodes from any of them, and keep a session to each."""

import asyncio
from dataclasses import replace
from pathlib import Path

from server.app import Node
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, NewJob, Worker


async def test_a_worker_that_knows_one_node_serves_all(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path / "a", name="node-a") as first:
        worker = Worker(first.address, name="w")
        ran: set[int] = set()

        @worker.handler("h", max_concurrency=8)
        async def handler(number: int) -> None:
            ran.add(number)

        await asyncio.to_thread(worker.start)
        try:
            await eventually(lambda: worker.nodes == ["node-a"])
            second = Node(replace(first.config, node="node-b", data_dir=tmp_path / "b"))
            await second.start()
            try:
                await eventually(lambda: sorted(worker.nodes) == ["node-a", "node-b"], what="a session to each node")
                await eventually(lambda: second.engine.ownership.epochs, timeout_s=30, what="shards of the second node")
                async with AsyncClient(first.address) as client:
                    await client.submit_many([NewJob(handler="h", payload=number) for number in range(200)])
                await eventually(lambda: len(ran) == 200, timeout_s=20, what="the end of all jobs")
            finally:
                await second.stop()
            await eventually(lambda: worker.nodes == ["node-a"], what="the end of the session to the node that left")
        finally:
            await asyncio.to_thread(worker.stop)
