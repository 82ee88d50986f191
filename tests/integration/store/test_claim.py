"""What a claim takes, what it binds, and what it leaves."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from server.domain.due import DueJob
from server.domain.ending import Recheck
from server.domain.job import Backoff, JobState, TimeLimits
from server.domain.outcome import Finish, Requeue
from server.store import claim, finish, reap
from tests.integration.store.bench import EPOCH, NO_BOUNDS, Bench
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def test_claim_binds_each_job_to_a_slot(store: Bench) -> None:
    limits = TimeLimits(attempt=timedelta(minutes=5), total=timedelta(hours=2))
    scheduled = datetime(2026, 3, 1, tzinfo=UTC)
    [job_id] = await store.submit(
        limits=limits, name="n", content_type="c", labels=b'{"a": "b"}', traceparent="t", priority=2,
        backoff=Backoff(max_attempts=7), schedule_id=77, scheduled_for=scheduled,
    )  # fmt: skip
    result = await store.claim(store.probe(workers=[store.second_worker]))
    [job] = result.jobs
    row = await store.row(job_id)
    assert (job.job_id, job.claim, job.epoch, job.attempt, job.max_attempts) == (job_id, 1, EPOCH, 1, 7)
    assert (job.worker_id, job.namespace_id, job.handler_id) == (store.second_worker, 1, store.handler)
    assert (job.name, job.content_type, job.labels, job.traceparent) == ("n", "c", b'{"a": "b"}', "t")
    assert (job.payload, job.priority, job.progress, job.concurrency_key) == (b"p", 2, None, None)
    assert (job.due_at, job.scheduled_for, job.started_at) == (row.due_at, scheduled, result.now)
    assert job.timeout_at == job.started_at + timedelta(minutes=5) == row.timeout_at
    assert (row.state, row.claim, row.open_claim, row.claim_epoch, row.attempt) == (1, 1, 1, EPOCH, 1)
    assert (row.worker_id, row.started_at, row.cancel_requested) == (store.second_worker, job.started_at, False)


async def test_an_attempt_ends_with_the_jobs_total_time_at_the_latest(store: Bench) -> None:
    job = await store.start(limits=TimeLimits(attempt=HOUR, total=timedelta(minutes=1)))
    assert job.timeout_at == (await store.row(job.job_id)).deadline_at == job.due_at + timedelta(minutes=1)


async def test_a_job_without_limits_has_no_timeout(store: Bench) -> None:
    assert (await store.start()).timeout_at is None


async def test_claim_takes_no_more_than_its_slots_and_fills_them_by_probe(store: Bench) -> None:
    other = await store.handler_named("other")
    await store.submit(5)
    await store.submit(5, shard=1)
    await store.submit(5, handler_id=other)
    probes = [
        store.probe(workers=[store.worker] * 2),
        store.probe(shard=1, workers=[store.second_worker] * 3),
        store.probe(handler=other, workers=[store.worker, store.second_worker]),
        store.probe(handler=other, shard=1, workers=[store.worker]),
    ]
    result = await store.claim(*probes)
    bound = sorted((job.job_id & 4095, job.handler_id, job.worker_id) for job in result.jobs)
    w1, w2 = store.worker, store.second_worker
    assert bound == [(0, store.handler, w1)] * 2 + [(0, other, w1), (0, other, w2)] + [(1, store.handler, w2)] * 3
    assert result.live_shards == {0, 1}


async def test_claim_takes_the_most_urgent_first(store: Bench) -> None:
    now = await store.now()
    by_rank = {}
    for rank, (priority, age) in enumerate([(1, 1), (2, 9), (2, 3), (3, 60), (5, 3600)]):
        [job_id] = await store.submit(priority=priority)
        await store.sql("UPDATE jobs SET due_at = %s WHERE id = %s", now - age * SECOND, job_id)
        by_rank[job_id] = rank
    order = []
    for _ in by_rank:
        order += [by_rank[job_id] for job_id in await store.claim_ids(store.probe(1))]
    assert order == [0, 1, 2, 3, 4]


async def test_claim_takes_equally_due_jobs_in_order_of_ids(store: Bench) -> None:
    ids = [one.job_id for one in await store.insert([store.job(due_at=datetime(2020, 1, 1, tzinfo=UTC))] * 6)]
    assert await store.claim_ids(store.probe(4)) == ids[:4]


async def test_claim_takes_nothing_early(store: Bench) -> None:
    [job_id] = await store.submit(delay=timedelta(milliseconds=300))
    due = (await store.row(job_id)).due_at
    assert (await store.claim()).jobs == []
    claimed: list[tuple[datetime | None, datetime]] = []

    async def claim_now() -> bool:
        result = await store.claim()
        claimed.extend((result.now, job.due_at) for job in result.jobs)
        return bool(claimed)

    await eventually(claim_now, what="the job is claimed")
    [(at, due_as_claimed)] = claimed
    assert due_as_claimed == due
    assert at is not None
    assert at >= due


async def test_a_due_time_in_the_past_is_now(store: Bench) -> None:
    [one] = await store.insert([store.job(due_at=datetime(2020, 1, 1, tzinfo=UTC))])
    assert one.due_at == one.created_at


async def test_claim_leaves_paused_handlers_alone(store: Bench) -> None:
    await store.submit()
    await store.sql("UPDATE handlers SET paused = true WHERE id = %s", store.handler)
    result = await store.claim()
    assert not result.jobs
    assert result.live_shards == {0}
    await store.sql("UPDATE handlers SET paused = false WHERE id = %s", store.handler)
    assert len((await store.claim()).jobs) == 1


async def test_claim_leaves_expired_jobs_alone(store: Bench) -> None:
    [late, fine] = await store.submit(2, limits=TimeLimits(start=HOUR))
    await store.sql("UPDATE jobs SET expires_at = now() - interval '1 ms' WHERE id = %s", late)
    assert await store.claim_ids(store.probe(1)) == [fine]
    assert await store.claim_ids(store.probe(1)) == []


async def test_claim_returns_a_mebibyte_at_most(store: Bench) -> None:
    third = 400 * 1024
    ids = await store.submit(6, payload=bytes(third))
    assert await store.claim_ids() == ids[:3]
    assert await store.claim_ids() == ids[3:]


async def test_claim_returns_one_job_however_large(store: Bench) -> None:
    ids = await store.submit(2, payload=bytes(claim.MAX_CLAIM_BYTES))
    assert await store.claim_ids() == ids[:1]
    assert await store.claim_ids() == ids[1:]


async def test_claim_that_is_cut_short_keeps_the_most_urgent_of_all_probes(store: Bench) -> None:
    half = bytes(700 * 1024)
    other = await store.handler_named("other")
    [low] = await store.submit(payload=half, priority=4)
    urgent = await store.submit(2, payload=half, priority=1, handler_id=other)
    assert await store.claim_ids(store.probe(5), store.probe(5, handler=other)) == urgent
    assert (await store.row(low)).state == JobState.PENDING
    assert await store.claim_ids(store.probe(5), store.probe(5, handler=other)) == [low]


async def test_claim_starts_at_its_lower_bounds(store: Bench) -> None:
    now = await store.now()
    early, late = await store.submit(2)
    await store.sql("UPDATE jobs SET due_at = %s WHERE id = %s", now - 10 * SECOND, early)
    await store.sql("UPDATE jobs SET due_at = %s WHERE id = %s", now - 5 * SECOND, late)
    only_third = (*NO_BOUNDS[:2], now - 5 * SECOND, *NO_BOUNDS[3:])
    assert await store.claim_ids(store.probe(bounds=only_third)) == [late]
    others = (now, now, now - 20 * SECOND, now, now)
    assert await store.claim_ids(store.probe(bounds=others)) == [early]


async def test_claim_passes_over_what_somebody_else_has_locked(store: Bench) -> None:
    ids = await store.submit(3)
    async with await store.connect() as somebody:
        await somebody.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (ids[0],))
        assert await store.claim_ids() == ids[1:]
        await somebody.rollback()
    assert await store.claim_ids() == ids[:1]


async def test_claims_at_the_same_time_never_take_the_same_job(store: Bench) -> None:
    """The lane of a partition is a matter of speed; without it nothing is claimed twice either."""
    ids = await store.submit(200)
    results = await asyncio.gather(*(store.claim(store.probe(50)) for _ in range(12)))
    assert sorted(job.job_id for result in results for job in result.jobs) == ids


async def test_claim_numbers_grow_and_never_repeat(store: Bench) -> None:
    [job_id] = await store.submit()
    numbers = []
    for turn in range(4):
        [job] = (await store.claim()).jobs
        numbers.append((job.claim, job.attempt))
        back = Requeue(ref=job.ref, delay=timedelta(0), burn=turn % 2 == 0)
        assert len(await finish.requeue(store.database, 0, [back])) == 1
    assert numbers == [(1, 1), (2, 2), (3, 2), (4, 3)]
    assert (await store.row(job_id)).claim == 4


async def test_progress_comes_with_the_next_claim(store: Bench) -> None:
    job = await store.start()
    await reap.save_progress(store.database, 0, job.worker_id, [(job.ref, b"half")])
    await finish.requeue(store.database, 0, [Requeue(ref=job.ref, delay=timedelta(0), burn=True)])
    [again] = (await store.claim()).jobs
    assert again.progress == b"half"
    # An attempt that is over leaves no trace in the progress of the next one.
    await reap.save_progress(store.database, 0, job.worker_id, [(job.ref, b"late")])
    assert (await store.row(job.job_id)).progress == b"half"


async def test_keyed_jobs_run_up_to_their_limit_and_the_rest_is_parked(store: Bench) -> None:
    ids = await store.submit(5, concurrency_key="k", concurrency_limit=2)
    [free] = await store.submit()
    result = await store.claim()
    assert [(job.job_id, job.concurrency_key) for job in sorted(result.jobs, key=lambda job: job.job_id)] == [
        (ids[0], "k"), (ids[1], "k"), (free, None),
    ]  # fmt: skip
    assert [(await store.row(job_id)).state for job_id in ids[2:]] == [JobState.PARKED] * 3
    # Nothing of the key is left in the due index.
    assert await claim.sweep(store.database, 0) == []


@pytest.mark.parametrize(("look_past", "parked"), [(0, 1), (5, 6), (100, 30)])
async def test_claim_looks_past_a_crowd_behind_a_full_key(store: Bench, look_past: int, parked: int) -> None:
    """The crowd is parked as far as it is looked at; what lies behind it is found, and no more than there are slots."""
    await store.start(concurrency_key="k")
    crowd = await store.submit(30, concurrency_key="k", priority=2)
    free = await store.submit(4)
    probes = [store.probe(1)]
    result = await claim.claim(store.database, 0, [(0, EPOCH)], probes, look_past=look_past)
    assert [job.job_id for job in result.jobs] == (free[:1] if look_past == 100 else [])
    assert result.parked == parked
    states = [(await store.row(job_id)).state for job_id in crowd]
    assert states == [JobState.PARKED] * parked + [JobState.PENDING] * (30 - parked)


async def test_claim_that_looks_past_its_slots_leaves_what_may_run(store: Bench) -> None:
    """Only what its key holds back is parked; what merely found no slot stays due."""
    ids = await store.submit(5)
    keyed = await store.submit(3, concurrency_key="k", concurrency_limit=2)
    result = await claim.claim(store.database, 0, [(0, EPOCH)], [store.probe(2)], look_past=50)
    assert sorted(job.job_id for job in result.jobs) == ids[:2]
    assert await store.claim_ids() == ids[2:] + keyed[:2]


async def test_running_jobs_of_a_key_count_whatever_their_handler(store: Bench) -> None:
    other = await store.handler_named("other")
    await store.start(concurrency_key="k", concurrency_limit=2)
    await store.submit(concurrency_key="k", concurrency_limit=2)
    await store.submit(concurrency_key="k", concurrency_limit=2, handler_id=other)
    assert len((await store.claim(store.probe(), store.probe(handler=other))).jobs) == 1


async def test_the_same_key_in_another_namespace_is_another_key(store: Bench) -> None:
    [(namespace,)] = await store.sql("INSERT INTO namespaces (name) VALUES ('second') RETURNING id")
    [mine] = await store.submit(concurrency_key="k")
    [theirs] = await store.submit(concurrency_key="k", namespace_id=namespace)
    assert await store.claim_ids() == [mine, theirs]


async def test_within_a_key_the_most_urgent_runs_first(store: Bench) -> None:
    [late] = await store.submit(concurrency_key="k", priority=4)
    [urgent] = await store.submit(concurrency_key="k", priority=1)
    assert await store.claim_ids() == [urgent]
    assert (await store.row(late)).state == JobState.PARKED


async def test_a_fenced_end_frees_the_key(store: Bench) -> None:
    job = await store.start(concurrency_key="k")
    [waiting] = await store.submit(concurrency_key="k")
    assert await store.claim_ids() == []
    done = Finish(ref=job.ref, state=JobState.COMPLETED, result=b"", content_type="")
    ends = await finish.fenced_finish(store.database, 0, [(0, EPOCH)], [done], Recheck.OPEN)
    assert [(one.concurrency_key, one.namespace_id, one.shard) for one in ends.ended] == [("k", 1, 0)]
    woken, _ = await reap.unpark(store.database, 0, [(0, EPOCH)], [(0, 1, "k", 1)])
    assert [one.job_id for one in woken] == [waiting]
    assert await store.claim_ids() == [waiting]


async def test_sweep_finds_the_first_of_every_handler_and_priority(store: Bench) -> None:
    other = await store.handler_named("other")
    expected = []
    for shard, handler, priority in [(0, store.handler, 1), (0, store.handler, 4), (0, other, 3), (2, other, 3)]:
        delays = [2 * HOUR, HOUR, 3 * HOUR]
        jobs = [store.job(handler_id=handler, priority=priority, delay=delay) for delay in delays]
        stored = await store.insert(jobs, shard)
        assert stored[1].due_at is not None
        expected.append(DueJob(priority, stored[1].due_at, stored[1].job_id, shard, handler))
    await store.submit(shard=4)
    await store.start(shard=0)
    assert sorted(await claim.sweep(store.database, 0)) == sorted(expected)
    assert await claim.sweep(store.database, 15) == []


async def test_peek_reads_the_first_of_every_priority_from_the_bounds_on(store: Bench) -> None:
    first = await store.insert([store.job(delay=n * HOUR) for n in range(5)])
    urgent = await store.insert([store.job(delay=HOUR, priority=1)])
    await store.submit(shard=1)
    found = await claim.peek(store.database, 0, [(0, store.handler, NO_BOUNDS)], 3)
    assert [job.job_id for job in sorted(found)] == [urgent[0].job_id] + [one.job_id for one in first[:3]]
    bound = first[2].due_at
    assert bound is not None
    found = await claim.peek(store.database, 0, [(0, store.handler, (bound,) * 5)], 64)
    assert [job.job_id for job in sorted(found)] == [one.job_id for one in first[2:]]
