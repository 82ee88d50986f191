"""1024 shards on eight nodes: scenario `cluster-large`; what a node with all of them costs: scenario `cluster-idle`.

The nodes' shard managers run in this process, each with its own session with a real ZooKeeper, and fence in on a real
PostgreSQL: eight whole processes on a small machine would measure how fast it starts Python.
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.cluster.processes import TICK_MS, TTL_S, BenchCluster, bench_cluster
from benchmarks.report import Report
from server.store.shards import fence_in
from shard_manager.coordinator import Lease, Member
from shard_manager.manager import ShardManager
from shard_manager.timings import ManagerTimings
from shard_manager.zookeeper import ZookeeperCoordinator, ZookeeperSettings
from shard_manager.zookeeper.link import Link
from shard_manager.zookeeper.messages import Operation, Stat

SHARDS, PARTITIONS, NODES = 1024, 32, 8
_paths = itertools.count(1)
_POLL_S = 0.01
_LIMIT_S = 60.0


class Counting:
    """Counts what all links of this process ask of ZooKeeper while it is in use."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()

    def taken(self) -> tuple[Counter[str], Counter[str]]:
        """What was counted since the last call."""
        found = (self.requests, self.operations)
        self.requests, self.operations = Counter(), Counter()
        return found


def count_requests() -> Counting:
    """Make all links count from now on."""
    counting = Counting()
    get, stat, children, sync, commit = Link.get, Link.stat, Link.children, Link.sync, Link.commit

    async def counted_get(self: Link, path: str, *, watch: bool = False) -> tuple[bytes, Stat] | None:
        counting.requests[f"get {_kind(path)}{' + watch' * watch}"] += 1
        return await get(self, path, watch=watch)

    async def counted_stat(self: Link, path: str, *, watch: bool = False) -> Stat | None:
        counting.requests[f"exists {_kind(path)}{' + watch' * watch}"] += 1
        return await stat(self, path, watch=watch)

    async def counted_children(self: Link, path: str, *, watch: bool = False) -> list[str]:
        counting.requests[f"children {_kind(path)}{' + watch' * watch}"] += 1
        return await children(self, path, watch=watch)

    async def counted_sync(self: Link, path: str) -> None:
        counting.requests["sync"] += 1
        await sync(self, path)

    async def counted_commit(self: Link, operations: Sequence[Operation]) -> list[str]:
        counting.requests["multi"] += 1
        for operation in operations:
            counting.operations[f"{type(operation).__name__.lower()} {_kind(operation.path)}"] += 1
        return await commit(self, operations)

    Link.get, Link.stat, Link.children = counted_get, counted_stat, counted_children  # type: ignore[method-assign]
    Link.sync, Link.commit = counted_sync, counted_commit  # type: ignore[method-assign]
    return counting


def _kind(path: str) -> str:
    parts = path.split("/")
    for kind in ("leases", "members", "candidates"):
        if kind in parts:
            return kind if parts[-1] == kind else f"{kind}/*"
    return parts[-1] if parts[-1] in ("plan", "meta") else "root"


class FencingHost:
    """Fences in on PostgreSQL, and serves nothing."""

    def __init__(self, cluster: BenchCluster, node: str, incarnation: int) -> None:
        self._cluster = cluster
        self._node = node
        self._incarnation = incarnation
        self.serving: dict[int, int] = {}

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        wanted = [(lease.shard, lease.generation, lease.token) for lease in leases]
        return await fence_in(self._cluster.database, wanted, self._node, self._incarnation)

    async def start(self, shard: int, epoch: int) -> None:
        self.serving[shard] = epoch

    async def stop(self, shard: int, *, graceful: bool) -> None:
        self.serving.pop(shard, None)

    async def released(self, shards: Sequence[int]) -> None:
        return


class ManagedNode:
    """One node's shard manager."""

    def __init__(self, cluster: BenchCluster, number: int, place: str) -> None:
        name = f"node-{number}"
        self.host = FencingHost(cluster, name, number)
        hosts, chroot = ZookeeperSettings.split(place)
        self.coordinator = ZookeeperCoordinator(
            ZookeeperSettings(hosts=hosts, chroot=chroot), cluster_id="bench", draw_generation=_generation
        )
        self._manager = ShardManager(
            self.coordinator,
            self.host,
            member=Member(node=name, incarnation=number, address=f"127.0.0.1:{number}"),
            shards=SHARDS,
            timings=ManagerTimings.for_session(timedelta(seconds=TTL_S)),
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._manager.run())

    async def vanish(self) -> None:
        """Stop at once; the session is left to expire, as a killed process's is."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self) -> None:
        await self._manager.drain()


async def _generation(known: int) -> int:
    # The fence in the database has seen the runs before.
    return max(known + 1, time.time_ns())


@contextlib.asynccontextmanager
async def _managed(cluster: BenchCluster) -> AsyncIterator[list[ManagedNode]]:
    place = f"{cluster.zookeeper.hosts}/large-{next(_paths)}"
    nodes = [ManagedNode(cluster, number, place) for number in range(1, NODES + 1)]
    try:
        yield nodes
    finally:
        await asyncio.gather(*(node.vanish() for node in nodes))


async def large(*, quick: bool) -> Report:
    """Cold start of eight nodes, and the failure of one, with 1024 shards; and what was asked of ZooKeeper for it."""
    runs = 1 if quick else 5
    starts: list[float] = []
    balances: list[float] = []
    failures: list[float] = []
    asked: dict[str, Counter[str]] = {}
    counting = count_requests()
    async with bench_cluster(shards=SHARDS, partitions=PARTITIONS) as cluster:
        for _ in range(runs):
            async with _managed(cluster) as nodes:
                counting.taken()
                began = time.monotonic()
                for node in nodes:
                    node.start()
                await _until(partial(_all_served, nodes))
                starts.append(time.monotonic() - began)
                await _until(partial(_balanced, nodes))
                balances.append(time.monotonic() - began)
                _note(asked, "cold start", counting)
                await asyncio.sleep(5.0)
                _note(asked, "5 s of rest", counting)
                began = time.monotonic()
                # The leader: the worst case.
                await nodes[0].vanish()
                counting.taken()
                await _until(partial(_all_served, nodes[1:]))
                failures.append(time.monotonic() - began)
                _note(asked, "failure of one", counting)
    values: dict[str, float] = {
        "cold start: all served": statistics.median(starts),
        "cold start: balanced": statistics.median(balances),
        "limit of a cold start": 5.0,
        "failure of the leader": statistics.median(failures),
        "failure, worst run": max(failures),
        "limit of a failure": TTL_S + 1.0,
    }
    for when, counts in asked.items():
        values |= {f"{when}: {what}": count for what, count in sorted(counts.items())}
    return Report(
        scenario="cluster-large",
        unit=f"s, {SHARDS} shards on {NODES} nodes, sessions of {TTL_S:g} s, ticks of {TICK_MS} ms; and requests",
        values=values,
        runs=runs,
    )


def _all_served(nodes: Sequence[ManagedNode]) -> bool:
    return sum(len(node.host.serving) for node in nodes) == SHARDS


def _balanced(nodes: Sequence[ManagedNode]) -> bool:
    return all(len(node.host.serving) == SHARDS // NODES for node in nodes)


def _note(asked: dict[str, Counter[str]], when: str, counting: Counting) -> None:
    """Keep the counts of the latest run."""
    requests, operations = counting.taken()
    asked[when] = requests + Counter({f"in multis: {what}": count for what, count in operations.items()})


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - many tasks change what is looked at
            await asyncio.sleep(_POLL_S)


async def idle(*, quick: bool) -> Report:
    """Share of a core that one node process takes with 1024 shards, ZooKeeper and nothing to do."""
    watch_s = 15.0 if quick else 60.0
    async with bench_cluster(shards=SHARDS, partitions=PARTITIONS) as cluster:
        node = cluster.start_node("node-1")
        await cluster.until_balanced(["node-1"])
        await asyncio.sleep(5.0)
        before = _cpu_s(node.pid)
        await asyncio.sleep(watch_s)
        used = _cpu_s(node.pid) - before
    return Report(
        scenario="cluster-idle",
        unit=f"% of a core that an idle node with {SHARDS} shards takes, over {watch_s:g} s",
        values={"node": 100 * used / watch_s, "limit": 5.0},
        runs=1,
    )


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
