"""A worker is killed, or silent for a while: scenario `cluster-worker`."""

import asyncio
import signal
import statistics
import time

from benchmarks.cluster.audit import Entry, run_twice
from benchmarks.cluster.load import keys_for, submit
from benchmarks.cluster.processes import BenchCluster, bench_cluster, until
from benchmarks.report import Report
from server.demo.follower import Follower
from server.demo.tally import Tally
from worker_sdk import AsyncClient

NODES = 3
_LONG_S = 8.0
_BLIP_S = 3.0


async def run(*, quick: bool) -> Report:
    """A worker with running jobs is killed, or its host vanishes: when do they run elsewhere? Is one that is silent for
    3 s left alone? A stopped process stands for a vanished host: its connections stand, and nothing comes of them."""
    runs, vanished = (1, 0) if quick else (5, 3)
    blip = 0
    async with bench_cluster() as cluster:
        await cluster.start(nodes=NODES)
        async with AsyncClient(cluster.addresses, timeout=30) as client:
            await _both_work(cluster, client)
            killed = [await _lose(cluster, client, signal.SIGKILL) for _ in range(runs)]
            gone = [await _lose(cluster, client, signal.SIGSTOP) for _ in range(vanished)]
            for _ in range(runs):
                blip += await _blip(cluster, client)
    return Report(
        scenario="cluster-worker",
        unit="s from the loss of a worker until the last of its jobs runs elsewhere",
        values={
            "kill -9, median of runs": statistics.median(killed),
            "kill -9, worst run": max(killed),
            "limit of that": 6.0,
            **_vanished(gone),
            f"jobs run twice after {_BLIP_S:g} s of silence": blip,
        },
        runs=runs,
    )


def _vanished(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    median = statistics.median(seconds)
    return {"host gone, median of runs": median, "host gone, worst run": max(seconds), "limit of a vanished host": 17.0}


async def _lose(cluster: BenchCluster, client: AsyncClient, how: signal.Signals) -> float:
    jobs = set(await submit(client, keys_for(cluster.shards, range(cluster.shards)), runs_s=_LONG_S))
    tally, follower = _tally(cluster)
    await until(lambda: _all_started(tally, follower, jobs), 30.0, "the start of the jobs")
    hit = {job for job in jobs if tally.executions(job)[-1].worker == "worker-1"}
    lost_at = time.time()
    cluster.workers["worker-1"].signal(how)

    async def all_again() -> bool:
        return len(_claimed(await cluster.audit.entries(lost_at)) & hit) == len(hit)

    await until(all_again, 60.0, "the second claims")
    last = max(entry.at for entry in await cluster.audit.entries(lost_at) if entry.job in hit)
    cluster.workers["worker-1"].kill()
    cluster.workers["worker-1"].start()
    await asyncio.sleep(_LONG_S + 2.0)
    await _both_work(cluster, client)
    return last - lost_at


async def _both_work(cluster: BenchCluster, client: AsyncClient) -> None:
    """Wait until the workers are connected to all nodes: each gets jobs."""
    tally, follower = _tally(cluster)

    async def seen() -> bool:
        jobs = await submit(client, keys_for(cluster.shards, range(cluster.shards)), runs_s=0.2)
        await asyncio.sleep(0.5)
        follower.read()
        ran = {one.worker for job in jobs for one in tally.executions(job)}
        return ran == set(cluster.workers)

    await until(seen, 60.0, "work for all workers")


async def _blip(cluster: BenchCluster, client: AsyncClient) -> int:
    began = time.time()
    jobs = set(await submit(client, keys_for(cluster.shards, range(cluster.shards)), runs_s=_LONG_S))
    tally, follower = _tally(cluster)
    await until(lambda: _all_started(tally, follower, jobs), 30.0, "the start of the jobs")
    cluster.workers["worker-2"].signal(signal.SIGSTOP)
    await asyncio.sleep(_BLIP_S)
    cluster.workers["worker-2"].signal(signal.SIGCONT)
    await asyncio.sleep(_LONG_S + 1.0)
    return run_twice(await cluster.audit.entries(began))


def _tally(cluster: BenchCluster) -> tuple[Tally, Follower]:
    tally = Tally()
    return tally, Follower(cluster.execution_logs(), tally)


async def _all_started(tally: Tally, follower: Follower, jobs: set[int]) -> bool:
    follower.read()
    return all(map(tally.executions, jobs))


def _claimed(entries: list[Entry]) -> set[int]:
    return {entry.job for entry in entries if entry.job is not None}
