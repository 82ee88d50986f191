"""B1: the owner of a schedule is killed, or asked to stop, just before the schedule is due."""

import asyncio
import random
import time
from datetime import UTC, datetime

import pytest

from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, Cluster, StartCluster
from tests.cluster.evidence import PlannedSchedule
from tests.cluster.run import Run, new_run
from tests.cluster.worker_program import SHORT
from worker_sdk import AsyncClient, CatchUp, NewSchedule, Overlap

# A boundary every so many seconds: longer than a node needs to be back on a busy machine. A firing that comes later
# than that is skipped by the default policies, and found missing.
_EVERY_S = 5
_ENDED_S = 10.0


async def _schedule(run: Run, *, step_s: int, times: int, every_firing: bool) -> None:
    """Create a schedule with `times` boundaries; unless every firing is to be made good, by the default policies."""
    first = (int(time.time()) // step_s + 1) * step_s
    wanted = NewSchedule(
        name=f"every-{step_s}",
        handler=SHORT,
        payload={},
        job_name=f"every-{step_s}",
        cron=f"*/{step_s} * * * * *",
        start_at=datetime.fromtimestamp(first, UTC),
        end_at=datetime.fromtimestamp(first + step_s * times, UTC),
        catch_up=CatchUp.ALL if every_firing else None,
        overlap=Overlap.ALLOW,
    )
    async with AsyncClient(run.cluster.address) as client:
        created = await client.create_schedule(wanted)
    assert created.next_fire_at == wanted.start_at
    nominal = tuple(float(first + step_s * number) for number in range(times))
    run.schedules.append(PlannedSchedule(schedule=created.id, name=wanted.name, nominal=nominal, exact=True))


async def _strike(cluster: Cluster, boundary: float, before_s: float, *, kill: bool) -> None:
    """End the node so long before the boundary, and start it again at once."""
    [node] = cluster.nodes
    await asyncio.sleep(boundary - before_s - time.time())
    assert time.time() < boundary, "the machine is too slow for this test"
    if kill:
        node.kill()
    else:
        await node.terminate(_ENDED_S)
    node.start()


async def _every_boundary_once(start_cluster: StartCluster, seed: int, strikes: int) -> None:
    draw = random.Random(seed)
    cluster = await start_cluster(workers=1, settings={**QUICK, "drain_grace": "1s"})
    run = new_run(cluster, seed=seed, load=Load(seconds=0.0))
    await _schedule(run, step_s=_EVERY_S, times=strikes + 1, every_firing=False)
    await _schedule(run, step_s=1, times=_EVERY_S * strikes + 1, every_firing=True)
    for number, boundary in enumerate(run.schedules[0].nominal[1:]):
        await _strike(cluster, boundary, draw.uniform(0.05, 0.5), kill=number % 2 == 0)
    await run.quiet()
    history, verdict = run.verdict(seed=seed, strikes=strikes)
    assert verdict.numbers["firings"] == sum(len(schedule.nominal) for schedule in run.schedules)
    assert verdict.numbers["executions"] == verdict.numbers["firings"]
    assert not any(schedule.skipped for schedule in history.schedules)


async def test_every_boundary_has_one_job(start_cluster: StartCluster, seed: int) -> None:
    await _every_boundary_once(start_cluster, seed, strikes=2)


@pytest.mark.soak
async def test_every_boundary_has_one_job_fifty_times(start_cluster: StartCluster, seed: int) -> None:
    await _every_boundary_once(start_cluster, seed, strikes=50)
