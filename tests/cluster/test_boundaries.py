"""B1: the owner of a schedule is killed, or asked to stop, just before the schedule is due."""

import asyncio
import random
import time
from datetime import UTC, datetime

import pytest

from server.domain.sharding import shard_of_id
from tests.cluster import audit
from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, Cluster, StartCluster
from tests.cluster.evidence import PlannedSchedule, owners
from tests.cluster.run import Run, new_run
from tests.cluster.settings import CLUSTER
from tests.cluster.worker_program import SHORT
from tests.cluster.zookeeper import zookeeper_site
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, CatchUp, NewSchedule, Overlap

# A boundary every so many seconds: longer than a busy machine needs to start a node, or others to take over, once a
# dead node's session and the guard against many losses are over. A firing that comes later than that is skipped by the
# default policies, and found missing.
_EVERY_S = 15
_CREATED_S = 2.0
_ENDED_S = 10.0
_TAKEN_OVER_S = 12.0


async def _schedule(run: Run, *, step_s: int, times: int, every_firing: bool) -> None:
    """Create a schedule with `times` boundaries; unless every firing is to be made good, by the default policies."""
    # Not within the next moments: a start in the past would be no start.
    first = (int(time.time() + _CREATED_S) // step_s + 1) * step_s
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


async def _strike(cluster: Cluster, schedule: int, boundary: float, before_s: float, *, kill: bool) -> None:
    """End the owner of a schedule so long before the boundary, and start it again once others have it, if any."""
    await asyncio.sleep(boundary - before_s - time.time())
    owner = (await asyncio.to_thread(owners, cluster.dsn)).get(shard_of_id(schedule), cluster.nodes[0].name)
    [node] = [node for node in cluster.nodes if node.name == owner]
    assert time.time() < boundary, "the machine is too slow for this test"
    if kill:
        node.kill()
    else:
        await node.terminate(_ENDED_S)
    if len(cluster.nodes) > 1:
        await eventually(
            lambda: owners(cluster.dsn).get(shard_of_id(schedule), owner) != owner,
            timeout_s=_TAKEN_OVER_S,
            what=f"another owner of the schedule than {owner}",
        )
    node.start()


async def _every_boundary_once(run: Run, seed: int, strikes: int) -> None:
    draw, cluster = random.Random(seed), run.cluster
    await _schedule(run, step_s=_EVERY_S, times=strikes + 1, every_firing=False)
    await _schedule(run, step_s=1, times=_EVERY_S * strikes + 1, every_firing=True)
    watched = run.schedules[0]
    for number, boundary in enumerate(watched.nominal[1:]):
        await _strike(cluster, watched.schedule, boundary, draw.uniform(0.05, 0.5), kill=(number + seed) % 2 == 0)
    await run.quiet()
    history, verdict = run.verdict(seed=seed, strikes=strikes)
    assert verdict.numbers["firings"] == sum(len(schedule.nominal) for schedule in run.schedules)
    assert verdict.numbers["executions"] == verdict.numbers["firings"]
    assert not any(schedule.skipped for schedule in history.schedules)


async def _alone(start_cluster: StartCluster, seed: int, strikes: int) -> None:
    """The node comes back by itself."""
    cluster = await start_cluster(workers=1, settings={**QUICK, "drain_grace": "1s"})
    await _every_boundary_once(new_run(cluster, seed=seed, load=Load(seconds=0.0)), seed, strikes)


async def _with_others(start_cluster: StartCluster, database: str, seed: int, strikes: int) -> None:
    """Another node takes the schedule over."""
    await asyncio.to_thread(audit.install, database)
    with zookeeper_site() as site:
        settings = {**CLUSTER, "session_ttl": "3s", "drain_grace": "1s"}
        cluster = await start_cluster(nodes=3, workers=1, settings=settings, zookeeper=site)
        run = new_run(cluster, seed=seed, load=Load(seconds=0.0))
        run.audited = True
        await _every_boundary_once(run, seed, strikes)


async def test_every_boundary_has_one_job(start_cluster: StartCluster, seed: int) -> None:
    await _alone(start_cluster, seed, strikes=1)


async def test_every_boundary_has_one_job_by_whoever_owns_it(
    start_cluster: StartCluster, database: str, seed: int
) -> None:
    await _with_others(start_cluster, database, seed, strikes=2)


@pytest.mark.soak
async def test_every_boundary_has_one_job_by_whoever_owns_it_fifty_times(
    start_cluster: StartCluster, database: str, seed: int
) -> None:
    await _with_others(start_cluster, database, seed, strikes=50)
