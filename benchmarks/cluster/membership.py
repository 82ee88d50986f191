"""A node is killed, stopped, added: scenarios `cluster-node-kill`, `cluster-node-stop`, `cluster-join`."""

import asyncio
import math
import signal
import statistics
import time
from functools import partial

from benchmarks.cluster.audit import claims_again, run_twice, stale_claims
from benchmarks.cluster.load import keys_for, steady_load, submit
from benchmarks.cluster.node_log import ACQUIRED, gaps
from benchmarks.cluster.processes import TTL_S, BenchCluster, bench_cluster, until
from benchmarks.report import Report
from worker_sdk import AsyncClient

NODES = 3
_SETTLE_S = 1.0


async def kill(*, quick: bool) -> Report:
    """Kill -9 of a node: when does each of its shards claim again? A session lasts `TTL_S`."""
    runs = 1 if quick else 5
    worst: list[float] = []
    typical: list[float] = []
    async with bench_cluster() as cluster:
        await cluster.start(nodes=NODES)
        for number in range(runs):
            names = list(cluster.nodes)
            found = await _kill(cluster, names[number % NODES], names[(number + 1) % NODES])
            worst.append(max(found.values()))
            typical.append(statistics.median(found.values()))
            cluster.start_node(names[number % NODES])
            await cluster.until_balanced(names)
        entries = await cluster.audit.entries()
    return Report(
        scenario="cluster-node-kill",
        unit=f"s from kill -9 to a claim of each orphan shard, sessions of {TTL_S:g} s",
        values={
            "last shard, median of runs": statistics.median(worst),
            "last shard, worst run": max(worst),
            "median shard": statistics.median(typical),
            "limit": TTL_S + 0.5,
            "jobs run twice": run_twice(entries),
            "stale claims": stale_claims(entries),
        },
        runs=runs,
    )


async def _kill(cluster: BenchCluster, victim: str, survivor: str) -> dict[int, float]:
    """Kill a node under a little load; return the seconds after which each of its shards claimed again."""
    orphans = {shard for shard, owner in (await cluster.owners()).items() if owner == victim}
    async with AsyncClient(cluster.address(survivor), timeout=30) as client:
        # Known to all, so that the workers' streams and the handler are there.
        await submit(client, keys_for(cluster.shards, range(cluster.shards)))
        await asyncio.sleep(_SETTLE_S)
        killed_at = time.time()
        cluster.nodes[victim].kill()
        await submit(client, keys_for(cluster.shards, orphans))

        async def all_again() -> bool:
            found = claims_again(await cluster.audit.entries(killed_at), orphans, killed_at)
            return all(map(math.isfinite, found.values()))

        await until(all_again, 60.0, "claims of the orphan shards")
        return claims_again(await cluster.audit.entries(killed_at), orphans, killed_at)


async def stop(*, quick: bool) -> Report:
    """SIGTERM of a node under load: how long is a shard without an owner, and is anything run twice?"""
    runs = 1 if quick else 5
    worst: list[float] = []
    took: list[float] = []
    async with bench_cluster() as cluster:
        await cluster.start(nodes=NODES)
        for number in range(runs):
            names = list(cluster.nodes)
            victim, survivor = names[number % NODES], names[(number + 1) % NODES]
            async with steady_load(cluster.address(survivor), shards=cluster.shards):
                await asyncio.sleep(_SETTLE_S)
                began = time.time()
                cluster.nodes[victim].signal(signal.SIGTERM)
                await until(partial(_ended, cluster, victim), 60.0, f"the end of {victim}")
                took.append(time.time() - began)
                await asyncio.sleep(_SETTLE_S)
            found = gaps(cluster.events(), began)
            worst.append(max(found.values()))
            cluster.start_node(victim)
            await cluster.until_balanced(names)
        entries = await cluster.audit.entries()
    return Report(
        scenario="cluster-node-stop",
        unit="s of a shard without an owner after SIGTERM",
        values={
            "longest, median of runs": statistics.median(worst),
            "longest, worst run": max(worst),
            "limit": 0.25,
            "end of the process": statistics.median(took),
            "jobs run twice": run_twice(entries),
            "stale claims": stale_claims(entries),
        },
        runs=runs,
    )


async def _ended(cluster: BenchCluster, node: str) -> bool:
    return cluster.nodes[node].ended


async def join(*, quick: bool) -> Report:
    """A fourth node joins under load: which shards move, and how long is each without an owner?"""
    runs = 1 if quick else 3
    moved: list[int] = []
    worst: list[float] = []
    took: list[float] = []
    twice = 0
    for _ in range(runs):
        async with bench_cluster() as cluster:
            await cluster.start(nodes=NODES)
            await asyncio.sleep(6.0)  # it is no new cluster any more
            async with steady_load(cluster.addresses, shards=cluster.shards):
                before = await cluster.owners()
                began = time.time()
                cluster.start_node(f"node-{NODES + 1}")
                await cluster.until_balanced(list(cluster.nodes))
                took.append(time.time() - began)
            after = await cluster.owners()
            events = [event for event in cluster.events() if event.at >= began]
            worst.append(max(gaps(events, began).values()))
            moved.append(sum(event.event == ACQUIRED for event in events))
            assert moved[-1] >= sum(before[shard] != after[shard] for shard in before)
            twice += run_twice(await cluster.audit.entries())
    return Report(
        scenario="cluster-join",
        unit="shards moved, and s of a shard without an owner",
        values={
            "moves": statistics.median(moved),
            "fair share": 64 // (NODES + 1),
            "longest without owner": statistics.median(worst),
            "until balanced": statistics.median(took),
            "jobs run twice": twice,
        },
        runs=runs,
    )
