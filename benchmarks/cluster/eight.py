"""1024 shards on eight node processes: scenario `cluster-large-processes`."""

import asyncio
import json
import time
from datetime import datetime
from pathlib import Path

from benchmarks.cluster.large import NODES, PARTITIONS, SHARDS
from benchmarks.cluster.node_log import ACQUIRED, ShardEvent
from benchmarks.cluster.processes import TTL_S, BenchCluster, bench_cluster, until
from benchmarks.report import Report

_LIMIT_S = 120.0


async def run(*, quick: bool) -> Report:
    """Start eight processes at once, then kill the leader; all by the times in their logs."""
    runs = 1
    async with bench_cluster(shards=SHARDS, partitions=PARTITIONS) as cluster:
        for number in range(1, NODES + 1):
            cluster.start_node(f"node-{number}", hot_connections="4", api_connections="4")
        names = list(cluster.nodes)
        await cluster.until_balanced(names)
        began = min(_first_session(node.output) for node in cluster.nodes.values())
        starts = cluster.events()
        await asyncio.sleep(2.0 if quick else 10.0)
        owners = await cluster.owners()
        leader = next(event.node for event in starts if event.event == ACQUIRED)
        orphans = {shard for shard, owner in owners.items() if owner == leader}
        killed_at = time.time()
        cluster.nodes[leader].kill()

        async def taken_over() -> bool:
            return orphans <= _acquired(cluster, killed_at).keys()

        await until(taken_over, _LIMIT_S, "the take-over of the leader's shards")
        taken = _acquired(cluster, killed_at)
    return Report(
        scenario="cluster-large-processes",
        unit=f"s, {SHARDS} shards on {NODES} processes of one machine, sessions of {TTL_S:g} s",
        values={
            "from the first session until all are served": max(_first(starts).values()) - began,
            "limit of that": 5.0,
            "from the first session until balanced": starts[-1].at - began,
            "failure of a node": max(taken[shard] for shard in orphans) - killed_at,
            "limit of a failure": TTL_S + 1.0,
        },
        runs=runs,
    )


def _first(events: list[ShardEvent]) -> dict[int, float]:
    found: dict[int, float] = {}
    for event in events:
        if event.event == ACQUIRED:
            found.setdefault(event.shard, event.at)
    return found


def _acquired(cluster: BenchCluster, since: float) -> dict[int, float]:
    return _first([event for event in cluster.events() if event.at >= since])


def _first_session(log: Path) -> float:
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and '"session opened"' in line:
            return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
    return float("inf")
