"""What happens if a job of a schedule is still live when its next firing comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from server.domain.due import NO_BOUND, Probe
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import Completed, completed
from server.domain.schedule import OverlapPolicy
from server.domain.sharding import shard_of_id
from server.domain.stored_schedule import StoredSchedule
from server.engine.firer import Firer
from server.engine.ownership import Ownership
from server.store.claim import claim
from server.store.finish import finish
from server.store.reap import unpark
from server.store.workers import admit
from tests.support.schedules import PARTITION_OF, Bench, every
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)


class Shift:
    """A worker of many slots that claims the jobs of one schedule, and finishes them when it is told to."""

    def __init__(self, bench: Bench, ownership: Ownership, schedule: StoredSchedule, worker_id: int) -> None:
        self.bench = bench
        self.shard = shard_of_id(schedule.schedule_id)
        self.partition = PARTITION_OF[self.shard]
        self.epochs = [(self.shard, ownership.epochs[self.shard])]
        self.ownership = ownership
        self.worker_id = worker_id

    async def claim(self) -> list[ClaimedJob]:
        probe = Probe(self.shard, self.bench.handler_id, [self.worker_id] * 5, [NO_BOUND] * 5)
        async with self.ownership.lane(self.partition):
            return (await claim(self.bench.database, self.partition, self.epochs, [probe])).jobs

    async def finish(self, ref: AttemptRef) -> None:
        [ended] = await finish(self.bench.database, self.partition, [completed(ref, Completed(b"", ""))])
        key = f"schedule:{ended.schedule_id}"
        async with self.ownership.lane(self.partition):
            await unpark(
                self.bench.database, self.partition, self.epochs, [(self.shard, self.bench.namespace_id, key, 1)]
            )


async def shift_of(bench: Bench, ownership: Ownership, schedule: StoredSchedule) -> Shift:
    worker_id = (await admit(bench.database, bench.namespace_id, "w", 1, "", b"{}", timedelta(minutes=1))).worker_id
    assert worker_id is not None
    return Shift(bench, ownership, schedule, worker_id)


@asynccontextmanager
async def running(firer: Firer, ownership: Ownership) -> AsyncIterator[None]:
    for shard in ownership.epochs:
        firer.shard_started(shard)
    task = asyncio.create_task(firer.run())
    try:
        yield
    finally:
        task.cancel()
        await firer.stop()


async def test_under_skip_no_two_jobs_are_live_and_the_schedule_goes_on(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(1)))
    ownership = await bench.ownership()
    shift = await shift_of(bench, ownership, schedule)
    async with running(bench.firer(ownership), ownership):
        await eventually(lambda: bench.told, what="the first firing")
        [job] = await shift.claim()

        async def skipped() -> bool:
            return (await bench.get("s")).skipped_counts.get("overlap", 0) >= 2

        await eventually(skipped, what="two firings are skipped while the job runs")
        assert len(await bench.jobs_of(schedule)) == 1
        await shift.finish(job.ref)
        await eventually(lambda: len(bench.told) == 2, what="the schedule goes on")
    after = await bench.get("s")
    assert after.fired_count == 2
    assert after.last_fired_at is not None
    assert job.scheduled_for is not None
    assert after.next_fire_at is not None
    nominals = (after.next_fire_at - job.scheduled_for) // SECOND
    assert after.fired_count + after.skipped_counts["overlap"] == nominals


async def test_a_pending_job_counts_as_live_under_skip(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(600)))
    firer = bench.firer(await bench.ownership())
    for expected in ({}, {"overlap": 1}, {"overlap": 2}):
        await pass_time(bench, 600)
        await firer.run_once()
        assert dict((await bench.get("s")).skipped_counts) == expected
    assert len(await bench.jobs_of(schedule)) == 1


async def test_under_buffer_one_a_single_firing_waits_and_runs_right_after(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(600), overlap=OverlapPolicy.BUFFER_ONE))
    ownership = await bench.ownership()
    shift = await shift_of(bench, ownership, schedule)
    firer = bench.firer(ownership)
    await pass_time(bench, 600)
    await firer.run_once()
    [first] = await shift.claim()
    # One firing waits behind the running one: a claim with free slots does not run it, but parks it.
    await pass_time(bench, 600)
    await firer.run_once()
    assert await shift.claim() == []
    assert [state for _, _, state in await bench.jobs_of(schedule)] == [1, 2]
    # More are skipped, and counted, whether the waiting one is parked or not.
    await pass_time(bench, 1800)
    await firer.run_once()
    after = await bench.get("s")
    assert (after.fired_count, dict(after.skipped_counts)) == (2, {"catch_up": 2, "buffer_full": 1})
    await shift.finish(first.ref)
    [second] = await shift.claim()
    assert second.scheduled_for is not None
    assert first.scheduled_for is not None
    assert second.scheduled_for != first.scheduled_for
    assert second.concurrency_key is not None


async def test_under_allow_jobs_run_side_by_side(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(600), overlap=OverlapPolicy.ALLOW))
    ownership = await bench.ownership()
    shift = await shift_of(bench, ownership, schedule)
    firer = bench.firer(ownership)
    for _ in range(3):
        await pass_time(bench, 600)
        await firer.run_once()
    assert len(await shift.claim()) == 3
    assert dict((await bench.get("s")).skipped_counts) == {}


async def pass_time(bench: Bench, seconds: int) -> None:
    """Move everything that a schedule has done, and its next firing, so much further into the past."""
    statements = (
        "UPDATE schedules SET next_fire_at = next_fire_at - s, last_fired_at = last_fired_at - s",
        "UPDATE jobs SET scheduled_for = scheduled_for - s, due_at = due_at - s",
    )
    for statement in statements:
        where = statement.replace("- s", "- %s::int4 * interval '1 second'")
        await bench.database.run(where, (seconds,) * where.count("%s"))
