"""ZooKeeper is away, a node is stopped in mid-air: scenarios `cluster-zookeeper-outage`, `cluster-node-pause`."""

import asyncio
import math
import signal
import statistics
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.cluster.audit import Entry, lateness, run_twice, stale_claims
from benchmarks.cluster.load import steady_load
from benchmarks.cluster.processes import TICK_MS, TTL_S, BenchCluster, bench_cluster, until
from benchmarks.report import Report

NODES = 3
_EDGE_S = 1.0
_LAST_S = 2.0


async def zookeeper(*, quick: bool) -> Report:
    """ZooKeeper down for a minute (quick: 10 s): what moves, how late are jobs, when does fail-over work again?

    A node is killed near the end: nobody can take its shards before ZooKeeper is back.
    """
    runs, away_s = (1, 10.0) if quick else (3, 60.0)
    moves: list[int] = []
    late: list[list[float]] = []
    recovered: list[float] = []
    stale = twice = 0
    for _ in range(runs):
        async with bench_cluster() as cluster:
            await cluster.start(nodes=NODES)
            async with steady_load(cluster.address("node-1"), shards=cluster.shards):
                await asyncio.sleep(_EDGE_S)
                began = time.time()
                await asyncio.to_thread(cluster.zookeeper.kill)
                await asyncio.sleep(away_s - _LAST_S)
                killed_at = time.time()
                orphans = {shard for shard, owner in (await cluster.owners()).items() if owner == "node-3"}
                late.append(lateness(await cluster.audit.entries(began), set(range(cluster.shards)), killed_at))
                cluster.nodes["node-3"].kill()
                await asyncio.sleep(_LAST_S)
                moves.append(sum(event.at >= began for event in cluster.events()))
                await asyncio.to_thread(cluster.zookeeper.start)
                back_at = time.time()
                await until(partial(_served, cluster, orphans), 60.0, "the take-over after the return")
                recovered.append(time.time() - back_at)
            entries = await cluster.audit.entries()
            stale += stale_claims(entries)
            twice += run_twice(entries)
    return Report(
        scenario="cluster-zookeeper-outage",
        unit=f"shards moved in {away_s:g} s without ZooKeeper, and s",
        values={
            "moves": max(moves),
            "claimed late, p50": statistics.median(map(statistics.median, late)),
            "claimed late, p99": statistics.median(times[math.ceil(len(times) * 0.99) - 1] for times in late),
            "claimed late, longest": statistics.median(times[-1] for times in late),
            "limit of lateness": 0.25,
            "fail-over after its return": statistics.median(recovered),
            "limit of that": 5.0,
            "jobs run twice": twice,
            "stale claims": stale,
        },
        runs=runs,
    )


async def _served(cluster: BenchCluster, shards: set[int]) -> bool:
    owners = await cluster.owners()
    return all(owners.get(shard) in ("node-1", "node-2") for shard in shards)


async def pause(*, quick: bool) -> Report:
    """SIGSTOP of an owner beyond its session, then SIGCONT: does it do anything that it may not?"""
    runs = 1 if quick else 5
    stale: list[int] = []
    twice: list[int] = []
    late: list[int] = []
    back: list[float] = []
    async with bench_cluster() as cluster:
        await cluster.start(nodes=NODES)
        names = list(cluster.nodes)
        for number in range(runs):
            victim, survivor = names[number % NODES], names[(number + 1) % NODES]
            began = time.time()
            async with steady_load(cluster.address(survivor), shards=cluster.shards):
                await asyncio.sleep(_EDGE_S)
                cluster.nodes[victim].signal(signal.SIGSTOP)
                await until(partial(_has_none, cluster, victim), TTL_S + 30, "the take-over of a stopped node")
                await asyncio.sleep(TICK_MS / 1000)
                resumed_at = time.time()
                cluster.nodes[victim].signal(signal.SIGCONT)
                await cluster.until_balanced(names)
                back.append(time.time() - resumed_at)
            entries = await cluster.audit.entries(began)
            stale.append(stale_claims(entries))
            twice.append(run_twice(entries))
            late.append(_overtaken(entries, resumed_at))
    return Report(
        scenario="cluster-node-pause",
        unit="statements of a stopped and overtaken node after SIGCONT, in all runs",
        values={
            "stale claims": sum(stale),
            "jobs run twice": sum(twice),
            "claims after SIGCONT, under any epoch of before": sum(late),
            "balanced again, s": statistics.median(back),
        },
        runs=runs,
    )


async def _has_none(cluster: BenchCluster, node: str) -> bool:
    return node not in (await cluster.owners()).values()


def _overtaken(entries: Sequence[Entry], since: float) -> int:
    """Claims from `since` on under epochs that were not the newest when `since` came."""
    newest: dict[int, int] = {}
    for entry in entries:
        if entry.job is None and entry.at < since:
            newest[entry.shard] = entry.epoch
    return sum(
        entry.job is not None and entry.at >= since and entry.epoch < newest.get(entry.shard, 0) for entry in entries
    )
