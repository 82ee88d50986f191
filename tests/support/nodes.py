"""A node in the test's own process, on a real database and a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from server.app import Node
from server.config import load_config
from server.domain.due import DueJob
from server.domain.job import NewJob
from server.domain.sharding import make_id, shard_of_id
from server.store.insert import IdBlock, PlacedJob, insert_jobs
from tests.support.waiting import eventually

# Short enough for tests, long enough for a busy machine.
QUICK = {
    "heartbeat": "200ms",
    "worker_lease": "2s",
    "reset_grace": "600ms",
    "kill_grace": "700ms",
    "sweep": "300ms",
    "session_ttl": "15s",
    "drain_grace": "2s",
    "hot_connections": "4",
    "api_connections": "4",
    "http_listen": "off",
}


def configured_node(database: str, folder: Path, *, name: str = "node-a", **settings: str) -> Node:
    """A node that has not started."""
    needs = {"database": database, "listen": "127.0.0.1:0", "data_dir": folder, "node": name}
    return Node(load_config({**QUICK, **needs, **settings}, {}))


@contextlib.asynccontextmanager
async def running_node(database: str, folder: Path, *, name: str = "node-a", **settings: str) -> AsyncIterator[Node]:
    """A started node that owns every shard."""
    node = configured_node(database, folder, name=name, **settings)
    await node.start()
    try:
        await eventually(lambda: bool(node.engine.ownership.epochs) and owns_all(node))
        yield node
    finally:
        await node.stop()


@contextlib.asynccontextmanager
async def running_nodes(database: str, folder: Path, count: int, **settings: str) -> AsyncIterator[list[Node]]:
    """Started nodes of one cluster, each with its share of the shards."""
    names = [f"node-{letter}" for letter in "abcdefgh"[:count]]
    nodes = [configured_node(database, folder / name, name=name, **settings) for name in names]
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        await eventually(lambda: shared(nodes), timeout_s=60, what="shards of every node")
        yield nodes


def shared(nodes: Sequence[Node]) -> bool:
    """Whether the nodes serve every shard together, each about as many."""
    counts = [len(node.engine.ownership.epochs) for node in nodes]
    return sum(counts) == len(nodes[0].engine.ownership.partition_of) and max(counts) - min(counts) <= 1


def owns_all(node: Node) -> bool:
    """Whether the node serves every shard."""
    return len(node.engine.ownership.epochs) == len(node.engine.ownership.partition_of)


class Gate:
    """A failpoint that holds the engine until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until a condition holds."""
    await eventually(condition, timeout_s=timeout)


async def submit(node: Node, handler: str, count: int = 1, *, shard: int | None = None, **fields: object) -> list[int]:
    """Store jobs straight through the store and nudge the engine; return their ids."""
    handler_id = (await node.catalog.handler(1, handler)).handler_id
    ids = IdBlock(node.database)
    width = len(node.engine.ownership.partition_of)
    placed = []
    build: Callable[..., NewJob] = NewJob
    for number, sequence in enumerate(await ids.take(count)):
        job = build(**{"namespace_id": 1, "handler_id": handler_id, "payload": b"%d" % number} | fields)
        placed.append(PlacedJob(make_id(sequence, number % width if shard is None else shard), job))
    stored = await insert_jobs(node.database, node.engine.ownership.partition_of, placed)
    node.engine.jobs_added(
        [
            DueJob(one.job.priority, done.due_at, one.job_id, shard_of_id(one.job_id), handler_id)
            for one, done in zip(placed, stored, strict=True)
            if done.due_at is not None
        ]
    )
    return [one.job_id for one in placed]


async def row(node: Node, job_id: int) -> SimpleNamespace | None:
    """The live row of a job."""
    rows = await node.database.fetch("SELECT * FROM jobs WHERE id = %s", (job_id,))
    return SimpleNamespace(**rows[0]._asdict()) if rows else None


async def history(node: Node, job_id: int) -> list[SimpleNamespace]:
    """The history rows of a job: one, if it has finished."""
    rows = await node.database.fetch("SELECT * FROM job_history WHERE id = %s", (job_id,))
    return [SimpleNamespace(**one._asdict()) for one in rows]


async def finished(node: Node, job_ids: Sequence[int], timeout: float = 10.0) -> None:
    """Wait until jobs have left for the history."""

    async def gone() -> bool:
        rows = await node.database.fetch("SELECT count(*) FROM job_history WHERE id = ANY(%s)", (list(job_ids),))
        return bool(rows[0][0] == len(job_ids))

    await eventually(gone, timeout_s=timeout, what="the end of the jobs")
