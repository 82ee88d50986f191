"""Who may be taken for dead: neither an outage of the database nor silence towards one node is a proof."""

import asyncio
import time
from collections.abc import Callable

from server.domain.ending import ANY_LEASE
from server.domain.job import AttemptOutcome, AttemptRef, JobState
from server.engine.engine import Engine
from server.engine.liveness import WorkerRefused
from server.store import workers
from tests.integration.store.bench import Bench, bench
from tests.integration.store.engine_bench import TIMINGS, ScriptedWorker, connect, engine_on, serve
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

LEASE_S = TIMINGS.worker_lease.total_seconds()


class Beats:
    """Keeps workers heard, as their heartbeats would, until told to stop."""

    def __init__(self, *beating: ScriptedWorker) -> None:
        self.beating = list(beating)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for worker in self.beating:
                worker.beat()
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._task.cancel()


async def start_job(store: Bench, worker: ScriptedWorker) -> AttemptRef:
    before = len(worker.got)
    [job_id] = await store.submit()
    await eventually(lambda: len(worker.got) > before, what="the job arrives")
    assert worker.got[-1].job_id == job_id
    return worker.got[-1].ref


async def holds_for(condition: Callable[[], bool], seconds: float) -> None:
    """Fail as soon as the condition does not hold."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        await asyncio.sleep(0.02)


def registered(engine: Engine, *refs: AttemptRef) -> Callable[[], bool]:
    return lambda: all(ref in engine.registry for ref in refs)


async def test_outage_longer_than_a_lease_kills_nobody(postgres: PostgresServer, database: str) -> None:
    """Nobody could renew while the database was away: then every lease is over, and that proves nothing.

    One worker is connected to the owner of the shard, one to another node only, whose renewals are late after the
    outage. When that one really falls silent, it is given up within a lease and a little.
    """
    async with (
        bench(database) as store,
        engine_on(store) as owner,
        engine_on(store, node="n2") as other,
    ):
        near = await connect(owner, "near", {store.handler: 1})
        far = await connect(other, "far", {store.handler: 1})
        # From the start: a worker that is not heard for a lease while all this is set up is lost, and rightly.
        beats = Beats(near, far)
        try:
            await serve(other, [0])
            far_ref = await start_job(store, far)
            await serve(owner, [0], token=3)
            near_ref = await start_job(store, near)
            await eventually(owner.liveness.may_reap_by_lease, what="renewals have worked for a lease")
            await asyncio.to_thread(postgres.stop)
            far_away = other.slots.of_worker(far.connected.worker_id)
            assert far_away is not None
            # The far node's renewals come late: its worker is out of sight until then.
            other.slots.detach(far_away)
            await asyncio.sleep(1.5 * LEASE_S)
            await asyncio.to_thread(postgres.start)

            async def over() -> bool:
                try:
                    both = [near.connected.worker_id, far.connected.worker_id]
                    return far.connected.worker_id in await workers.dead(store.database, both, as_of=ANY_LEASE)
                except Exception:
                    return False

            await eventually(over, what="the leases are over")
            await eventually(lambda: not owner.liveness.may_reap_by_lease(), what="the owner knows of the outage")
            await holds_for(registered(owner, near_ref, far_ref), 0.5 * LEASE_S)
            far_away.closed = False
            other.slots.attach(far_away)
            await holds_for(registered(owner, near_ref, far_ref), 1.2 * LEASE_S)
            assert owner.liveness.may_reap_by_lease()
            assert await store.sql("SELECT id, claim, state FROM jobs ORDER BY id") == [
                (far_ref.job_id, 1, JobState.RUNNING),
                (near_ref.job_id, 1, JobState.RUNNING),
            ]
            other.slots.detach(far_away)
            await eventually(lambda: far_ref not in owner.registry, timeout_s=5, what="the silent worker is given up")
        finally:
            beats.stop()
        noted = await store.sql("SELECT outcome, error_type FROM attempts WHERE job_id = %s", far_ref.job_id)
        assert noted == [(AttemptOutcome.WORKER_LOST, "worker_lost")]
        assert near_ref in owner.registry


async def test_owner_never_reaps_a_worker_that_it_hears(store: Bench) -> None:
    """Its lease may be over for any reason: renewals that fail, a clock that jumped."""
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        ref = await start_job(store, worker)
        beats = Beats(worker)
        try:
            await eventually(engine.liveness.may_reap_by_lease, what="renewals have worked for a lease")
            for _ in range(10):
                await store.sql("UPDATE workers SET lost_at = now() WHERE id = %s", worker.connected.worker_id)
                await engine.reaper.reap_once()
                assert ref in engine.registry
        finally:
            beats.stop()
    assert (await store.row(ref.job_id)).state == JobState.RUNNING


async def test_goodbye_gives_back_at_once(store: Bench) -> None:
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        ref = await start_job(store, worker)
        second = await connect(engine, "w2", {store.handler: 1})
        await engine.goodbye(worker.connected, "shutdown")
        await eventually(lambda: second.got, timeout_s=0.9 * LEASE_S, what="the job arrives elsewhere")
        assert (second.got[0].job_id, second.got[0].claim) == (ref.job_id, 2)


async def test_lost_stream_gives_back_after_its_grace_unless_the_worker_returns(store: Bench) -> None:
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        before = Beats(worker)
        ref = await start_job(store, worker)
        await eventually(engine.liveness.may_reap_by_lease, what="renewals have worked for a lease")
        before.stop()
        engine.detach(worker.connected, goodbye=False)
        back = await connect(engine, "w", {store.handler: 1}, running=[ref])
        beats = Beats(back)
        await holds_for(registered(engine, ref), 2 * TIMINGS.reset_grace.total_seconds())
        beats.stop()
        engine.detach(back.connected, goodbye=False)
        lost_at = time.monotonic()
        await eventually(lambda: ref not in engine.registry, what="the attempt is given back")
        assert time.monotonic() - lost_at < TIMINGS.reset_grace.total_seconds() + 0.6 * LEASE_S


async def test_newer_incarnation_takes_over_from_a_dead_one_and_is_refused_beside_a_live_one(store: Bench) -> None:
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        ref = await start_job(store, worker)
        beats = Beats(worker)
        try:
            await connect(engine, "w", {store.handler: 1}, incarnation=2)
        except WorkerRefused as error:
            refusal = str(error)
        else:
            refusal = ""
        assert "already connected as another incarnation: give each worker its own name" in refusal
        beats.stop()
        engine.detach(worker.connected, goodbye=False)
        newer = await connect(engine, "w", {store.handler: 1}, incarnation=2)
        await eventually(lambda: newer.got, timeout_s=0.9 * LEASE_S, what="its job comes back at once")
        assert newer.got[0].job_id == ref.job_id
        assert [one.outcome for one in await store.attempts(ref.job_id)] == [AttemptOutcome.WORKER_LOST]


async def test_reaper_that_was_held_finds_the_job_completed(store: Bench) -> None:
    """Between the reaper's reading and its statement the result arrives: the job stays completed."""
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        ref = await start_job(store, worker)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await go_on.wait()

        engine.failpoints.set("reap.selected", hold)
        engine.slots.detach(worker.connected)
        await workers.end(store.database, [worker.connected.worker_id], "goodbye")
        await eventually(reached.is_set, what="the reaper has selected the attempt")
        worker.complete(ref)
        await eventually(lambda: worker.ack_of(ref), what="the result is acknowledged")
        go_on.set()
        engine.failpoints.set("reap.selected", None)
        await eventually(lambda: ref not in engine.registry, what="the reaper is done")
        await engine.reaper.reap_once()
    assert (await store.history(ref.job_id)).state == JobState.COMPLETED
    assert await store.attempts(ref.job_id) == []
    assert await store.row(ref.job_id) is None
