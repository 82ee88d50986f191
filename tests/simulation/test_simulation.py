"""Thousands of schedules of faults against the real shard manager, in virtual time, each repeatable from its seed.

Whatever happens (see `storm`): epochs of a shard only grow, each belongs to one process, and follow the order of the
leases; no statement takes effect but at the present epoch; no lease is given up while its shard is served; plans are
written by the leader alone, one after the other, and move few shards that could stay; and once the faults are over,
every shard is served by its planned owner within seconds.

A failure prints the seed; `SHARDWHEEL_SIMULATION_SEED=n pytest tests/simulation -k one_schedule -s` repeats it step by
step.
"""

import asyncio
import logging
import os
import random
from collections.abc import Iterator

import pytest

from tests.simulation.storm import FAULTS, FAULTS_PER_SCHEDULE, Storm
from tests.simulation.world import NAMES, World
from tests.support.thoroughness import THOROUGH
from tests.support.virtual_time import VirtualTimeLoop

SEED = int(os.environ.get("SHARDWHEEL_SIMULATION_SEED", "1"))
BATCHES = 10
SCHEDULES_PER_BATCH = 2000 if THOROUGH else 200


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Logging costs more than the simulation itself."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_schedule(seed: int, *, faults: int = FAULTS_PER_SCHEDULE, conditional: bool = True) -> tuple[World, Storm, str]:
    """Run one schedule; the last of what is returned says what is wrong, "" if nothing is."""

    async def run() -> tuple[World, Storm, str]:
        world = World(random.Random(seed), conditional=conditional)
        storm = Storm(world)
        for name in NAMES:
            world.begin(name)
        await storm.rage(faults)
        missing = await storm.heal()
        await storm.end()
        return world, storm, "; ".join([*world.table.wrong, *([missing] if missing else [])])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_schedule_of_faults_breaks_anything(batch: int) -> None:
    statements = refused = 0
    for seed in range(batch * 1_000_000, batch * 1_000_000 + SCHEDULES_PER_BATCH):
        world, storm, wrong = run_schedule(seed)
        assert not wrong, f"seed {seed}: {wrong}, after {storm.struck}"
        statements += world.table.statements
        refused += world.table.refused
    # Both happened often enough to mean something.
    assert statements > 10 * SCHEDULES_PER_BATCH
    assert refused > SCHEDULES_PER_BATCH


def test_one_schedule() -> None:
    world, storm, wrong = run_schedule(SEED)
    print(f"seed {SEED}: {storm.struck}")
    for name, event in world.told:
        print(f"  {name}: {event}")
    assert not wrong


def test_the_same_seed_does_the_same() -> None:
    first, second = (run_schedule(7, faults=30) for _ in range(2))
    assert len(first[0].told) > 100
    assert list(map(repr, first[0].told)) == list(map(repr, second[0].told))


def test_every_fault_strikes() -> None:
    struck = {fault.split()[0] for seed in range(40) for fault in run_schedule(seed)[1].struck}
    assert struck == {fault.__name__.strip("_") for fault in FAULTS}


def test_a_wiped_coordinator_moves_nothing() -> None:
    """The new plan begins with the owners that the fences name; every shard is fenced in anew, by the same node."""

    async def run(seed: int) -> None:
        world = World(random.Random(seed))
        for name in NAMES:
            world.begin(name)
        assert not await Storm(world).heal()
        before = world.cluster.plan
        assert before is not None
        world.cluster.wipe()
        assert not await Storm(world).heal()
        after = world.cluster.plan
        assert after is not None
        assert after.owners == before.owners
        assert {row.lease.generation for row in world.table.rows.values()} == {2}
        await Storm(world).end()
        assert not world.table.wrong

    for seed in range(50):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(run(seed))


def test_an_unconditional_fence_in_is_found_out() -> None:
    wrong = [run_schedule(seed, conditional=False)[2] for seed in range(100)]
    assert any("a stalled node fences out the owner of a newer lease" in one for one in wrong)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_long_storms_leave_nothing_behind(seed: int) -> None:
    _, storm, wrong = run_schedule(seed, faults=300)
    assert not wrong, f"seed {seed}: {wrong}, after {storm.struck}"
