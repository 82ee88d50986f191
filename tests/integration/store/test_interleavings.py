"""Orders of events that a plausible design gets wrong, on a real database.

The firer's race with a pause is among the tests of schedules.
"""

import asyncio
from datetime import timedelta
from unittest import mock

from server.domain.due import Probe
from server.domain.job import AttemptRef, Backoff, ClaimedJob, DedupeKey, JobState, Submitted
from server.domain.outcome import AckStatus, AttemptFacts, Failed, Finish
from server.store import finish, jobs_control
from server.store.engine_store import PostgresEngineStore
from tests.integration.store.bench import NAMESPACE, NO_BOUNDS, Bench
from tests.integration.store.engine_bench import ScriptedWorker, connect, engine_on, serve
from tests.support.waiting import eventually

SOON = Backoff(initial=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))


async def test_a_report_that_crosses_a_claim_takes_nothing_back(store: Bench) -> None:
    """The worker answers the new owner's hello before the owner's first job reaches it: that job is not lost."""
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 3})
        reports: list[tuple[int, set[AttemptRef]]] = []
        with mock.patch.object(worker, "_report", lambda number: reports.append((number, set(worker.holds)))):
            await serve(engine, [0])
            await eventually(lambda: reports, what="the owner hello")
            [job_id] = await store.submit()
            await eventually(lambda: worker.got, what="the job arrives")
            for number, held in reports:
                assert not held
                engine.adoption.reported(worker.connected, number, held)
        # What is given back goes through the lane before this one is claimed, and would be claimed along with it.
        [later] = await store.submit()
        await eventually(lambda: later in {job.job_id for job in worker.got}, what="the later job arrives")
        assert [(job.job_id, job.claim) for job in worker.got] == [(job_id, 1), (later, 1)]
        for job in list(worker.got):
            worker.complete(job.ref)
        await eventually(lambda: len(worker.acks) == 2, what="both are acknowledged")
        assert {status for _, status in worker.acks} == {AckStatus.ACCEPTED}


async def test_a_failure_whose_ack_was_lost_counts_once(store: Bench) -> None:
    """The job is pending again when the worker sends its failure once more, and it still carries the same claim."""
    [job_id] = await store.submit(backoff=Backoff(initial=timedelta(hours=1)))
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        await eventually(lambda: worker.got, what="the job arrives")
        ref = worker.got[0].ref
        worker.result(ref, Failed("E", "first"))
        await eventually(lambda: worker.ack_of(ref), what="the failure is acknowledged")
        row = await store.row(job_id)
        assert (row.state, row.claim, row.open_claim, row.attempt) == (JobState.PENDING, 1, None, 1)
        worker.result(ref, Failed("E", "again"))
        await eventually(lambda: len(worker.ack_of(ref)) == 2, what="the second one is answered")
        assert worker.ack_of(ref) == [AckStatus.ACCEPTED, AckStatus.STALE]
        assert await store.row(job_id) == row
        assert [one.error_message for one in await store.attempts(job_id)] == ["first"]


async def test_a_failure_that_is_sent_again_during_the_next_attempt_does_not_end_it(store: Bench) -> None:
    [job_id] = await store.submit(backoff=SOON)
    async with engine_on(store) as engine:
        worker = await connect(engine, "w", {store.handler: 2})
        await serve(engine, [0])
        await eventually(lambda: worker.got, what="the job arrives")
        first = worker.got[0].ref
        worker.result(first, Failed("E", "m"))
        await eventually(lambda: len(worker.got) == 2, what="the next attempt arrives")
        worker.result(first, Failed("E", "m"))
        await eventually(lambda: len(worker.ack_of(first)) == 2, what="the second failure is answered")
        assert worker.ack_of(first)[1] is AckStatus.STALE
        second = worker.got[1]
        assert (second.claim, second.attempt) == (2, 2)
        assert (await store.row(job_id)).state == JobState.RUNNING
        worker.complete(second.ref)
        await eventually(lambda: worker.ack_of(second.ref), what="the completion is acknowledged")
    assert (await store.history(job_id)).state == JobState.COMPLETED
    assert len(await store.attempts(job_id)) == 1


async def test_a_submit_whose_answer_was_lost_finds_the_job_that_has_finished(store: Bench) -> None:
    """The key outlives the job: otherwise it would be free by the time the client asks again."""
    job = store.job(dedupe=DedupeKey(key="order-1", ttl=timedelta(0), content_hash=b"h"))
    [lost] = await store.insert([job])
    [claimed] = (await store.claim()).jobs
    done = Finish(ref=claimed.ref, state=JobState.COMPLETED, result=b"", content_type="")
    await finish.finish(store.database, 0, [done])
    assert await store.row(lost.job_id) is None
    [again] = await store.insert([job])
    assert again == Submitted(job_id=lost.job_id, created=False)
    assert (await store.claim()).jobs == []


async def test_one_claim_takes_one_job_of_a_key_with_limit_one(store: Bench) -> None:
    """A statement does not see its own updates: the rank within the key has to hold the rest back."""
    ids = await store.submit(10, concurrency_key="k", concurrency_limit=1)
    assert await store.claim_ids(store.probe(10)) == ids[:1]
    states = [(await store.row(job_id)).state for job_id in ids]
    assert states == [JobState.RUNNING] + [JobState.PARKED] * 9


async def test_one_claim_takes_one_job_of_a_key_over_all_its_handlers_and_priorities(store: Bench) -> None:
    other = await store.handler_named("other")
    for handler in (store.handler, other):
        for priority in (1, 3, 5):
            await store.submit(2, concurrency_key="k", handler_id=handler, priority=priority)
    probes = [Probe(0, handler, [store.worker] * 4, NO_BOUNDS) for handler in (store.handler, other)]
    assert [job.priority for job in (await store.claim(*probes)).jobs] == [1]


async def test_no_more_jobs_of_a_key_run_than_its_limit_and_all_of_them_do(store: Bench) -> None:
    """Two handlers share a key; claims of one lane, ends and wakings cross each other all the time."""
    other = await store.handler_named("other")
    handlers = (store.handler, other)
    for number in range(40):
        await store.submit(concurrency_key="k", concurrency_limit=3, handler_id=handlers[number % 2])
    most = 0

    async with engine_on(store) as engine:

        def end_soon(worker: ScriptedWorker, job: ClaimedJob) -> None:
            nonlocal most
            most = max(most, len(worker.holds))
            asyncio.get_running_loop().call_later(0.004, worker.complete, job.ref)

        worker = await connect(engine, "w", dict.fromkeys(handlers, 20))
        worker.on_job = end_soon
        await serve(engine, [0])
        await eventually(lambda: len(worker.acks) == 40, what="all jobs are through")
        assert {status for _, status in worker.acks} == {AckStatus.ACCEPTED}
    assert most == 3
    assert await store.sql("SELECT count(*) FROM job_history WHERE state = 3") == [(40,)]


class CancellingStore(PostgresEngineStore):
    """Lets a user cancel a job right after the completer has read its facts."""

    cancel: AttemptRef | None = None
    bench: Bench

    async def load_facts(self, partition: int, refs: object) -> tuple[object, dict[AttemptRef, AttemptFacts]]:  # type: ignore[override]
        loaded = await super().load_facts(partition, refs)  # type: ignore[arg-type]
        if self.cancel is not None:
            ref, self.cancel = self.cancel, None
            done = await jobs_control.cancel(self.bench.database, partition, NAMESPACE, ref.job_id, "")
            assert isinstance(done, jobs_control.Cancelled)
            assert done.running is not None
        return loaded


async def test_a_cancel_that_was_answered_wins_over_a_retry_under_way(store: Bench) -> None:
    [job_id] = await store.submit(backoff=Backoff(initial=timedelta(hours=1)))
    cancelling = CancellingStore(store.database, node="node-1", incarnation=11)
    cancelling.bench = store
    async with engine_on(store, engine_store=cancelling) as engine:
        worker = await connect(engine, "w", {store.handler: 1})
        await serve(engine, [0])
        await eventually(lambda: worker.got, what="the job arrives")
        ref = worker.got[0].ref
        cancelling.cancel = ref
        worker.result(ref, Failed("E", "m"))
        await eventually(lambda: worker.ack_of(ref), what="the failure is acknowledged")
        assert worker.ack_of(ref) == [AckStatus.ACCEPTED]
    assert (await store.history(job_id)).state == JobState.CANCELLED
