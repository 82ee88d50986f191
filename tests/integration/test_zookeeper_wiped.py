"""ZooKeeper's data are lost under a running cluster: nodes serve on, begin anew with what they had, and outrank what
was granted before."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import psycopg

from server.app import Node
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from tests.support.zookeeper import ZookeeperServer
from worker_sdk import AsyncClient, NewJob, Worker

SHARDS = 64
TTL_S = 2.0
JOBS = 300


class Gaps:
    """The longest time in which a shard was served by no node."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._since: dict[int, float] = {}
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            now = time.monotonic()
            served = set[int]().union(*(node.engine.ownership.epochs for node in self._nodes))
            for shard in range(SHARDS):
                if shard in served:
                    since = self._since.pop(shard, now)
                    self.longest_s = max(self.longest_s, now - since)
                else:
                    self._since.setdefault(shard, now)
            await asyncio.sleep(0.005)


def fences(database: str) -> tuple[set[int], dict[int, str]]:
    """Generations, and shard to owner."""
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT shard, generation, owner FROM shards").fetchall()
    return {generation for _, generation, _ in rows}, {shard: owner for shard, _, owner in rows}


async def test_a_wiped_zookeeper_costs_a_generation_and_no_shard(database: str, tmp_path: Path) -> None:
    with ZookeeperServer() as server:
        settings = {"coordinator": "zookeeper", "zookeeper": f"{server.hosts}/wiped", "session_ttl": f"{TTL_S:g}s"}
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(running_node(database, tmp_path / "0", name="node-0", **settings))]
            for number in (1, 2):
                node = Node(replace(nodes[0].config, node=f"node-{number}", data_dir=tmp_path / str(number)))
                await node.start()
                stack.push_async_callback(node.stop)
                nodes.append(node)
            await eventually(
                lambda: all(len(node.engine.ownership.epochs) >= SHARDS // 3 for node in nodes),
                timeout_s=60,
                what="a balanced cluster",
            )
            before, owners = fences(database)
            ran: list[int] = []
            worker = Worker(nodes[0].address, name="w")

            @worker.handler("h", max_concurrency=8)
            async def handler(number: int) -> None:
                ran.append(number)

            await asyncio.to_thread(worker.start)
            stack.push_async_callback(asyncio.to_thread, worker.stop)
            gaps = Gaps(nodes)
            watch = asyncio.create_task(gaps.watch())
            await asyncio.to_thread(server.stop)
            server.wipe()
            await asyncio.to_thread(server.start)
            wiped_s = time.monotonic()
            async with AsyncClient(nodes[1].address) as client:
                for number in range(JOBS):
                    await client.submit_many([NewJob(handler="h", payload=number)])
                    await asyncio.sleep(0.02)

            def begun_anew() -> bool:
                # Nodes that begin anew at the same moment may draw one each; every one outranks what was before.
                generations, _ = fences(database)
                return min(generations) > max(before)

            await eventually(begun_anew, timeout_s=60, what="a new generation for all shards")
            took_s = time.monotonic() - wiped_s
            await eventually(lambda: len(ran) >= JOBS, timeout_s=60, what="the end of all jobs")
            watch.cancel()
            _, after = fences(database)
    moved = sum(owners[shard] != after[shard] for shard in owners)
    print(f"new generation for all after {took_s:.1f} s; longest gap {gaps.longest_s * 1000:.0f} ms; {moved} moved")
    assert sorted(ran) == list(range(JOBS))
    assert moved == 0
    assert gaps.longest_s < TTL_S
