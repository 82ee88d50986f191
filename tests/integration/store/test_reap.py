"""What the owner of a shard looks after: expiry, overdue attempts, lost workers, parked jobs."""

from datetime import timedelta

import pytest

from server.domain.due import DueJob
from server.domain.job import JobState, TimeLimits
from server.domain.outcome import Requeue
from server.store import finish, reap
from tests.integration.store.bench import EPOCH, Bench

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=1)
EPOCHS = [(0, EPOCH)]


async def pass_time(store: Bench, job_id: int, by: timedelta) -> None:
    """Move every time of a job into the past."""
    columns = ("due_at", "deadline_at", "expires_at", "timeout_at", "started_at")
    changes = ", ".join(f"{column} = {column} - %s" for column in columns)
    await store.sql(f"UPDATE jobs SET {changes} WHERE id = %s", *[by] * len(columns), job_id)


@pytest.mark.parametrize(
    ("limits", "error_type", "message"),
    [
        (TimeLimits(start=SOON), "start_timeout", "no worker started the job within its start timeout"),
        (TimeLimits(total=SOON), "total_timeout", "the job's total time is over"),
        (TimeLimits(start=SOON, total=HOUR), "start_timeout", "no worker started the job within its start timeout"),
        (TimeLimits(start=HOUR, total=SOON), "total_timeout", "the job's total time is over"),
    ],
)
async def test_expired_job_fails_with_the_limit_that_it_broke(
    store: Bench, limits: TimeLimits, error_type: str, message: str
) -> None:
    [job_id] = await store.submit(limits=limits)
    await pass_time(store, job_id, timedelta(minutes=1))
    assert await reap.attention(store.database, 0, [0]) == (True, False, False)
    assert await reap.expire(store.database, 0, EPOCHS) == ([job_id], frozenset({0}))
    gone = await store.history(job_id)
    assert (gone.state, gone.error_type, gone.error_message) == (JobState.FAILED, error_type, message)
    assert (gone.attempt, gone.started_at, await store.attempts(job_id)) == (0, None, [])
    assert await reap.attention(store.database, 0, [0]) == (False, False, False)


async def test_nothing_expires_early_or_while_it_runs(store: Bench) -> None:
    waiting = await store.submit(limits=TimeLimits(start=HOUR, total=HOUR))
    later = await store.submit(delay=HOUR, limits=TimeLimits(start=SOON))
    assert (await store.row(later[0])).expires_at > await store.now() + HOUR - timedelta(minutes=1)
    running = await store.start_many(1, shard=1, limits=TimeLimits(start=HOUR, total=HOUR))
    await pass_time(store, running[0].job_id, 2 * HOUR)
    ids, live = await reap.expire(store.database, 0, [(0, EPOCH), (1, EPOCH)])
    assert not ids
    assert live == {0, 1}
    assert await store.claim_ids() == waiting


async def test_parked_job_expires_too(store: Bench) -> None:
    await store.start(concurrency_key="k")
    [parked] = await store.submit(concurrency_key="k", limits=TimeLimits(start=HOUR))
    assert await store.claim_ids() == []
    await pass_time(store, parked, 2 * HOUR)
    assert (await reap.expire(store.database, 0, EPOCHS))[0] == [parked]


async def test_job_whose_total_time_ends_between_tries_expires(store: Bench) -> None:
    job = await store.start(limits=TimeLimits(start=HOUR, total=2 * HOUR))
    await finish.requeue(store.database, 0, [Requeue(ref=job.ref, delay=3 * HOUR, burn=True)])
    await pass_time(store, job.job_id, HOUR + timedelta(minutes=1))
    # The start timeout does not count any more.
    assert (await reap.expire(store.database, 0, EPOCHS))[0] == []
    await pass_time(store, job.job_id, HOUR)
    assert (await reap.expire(store.database, 0, EPOCHS))[0] == [job.job_id]
    assert (await store.history(job.job_id)).error_type == "total_timeout"


async def test_expire_passes_over_what_is_being_claimed(store: Bench) -> None:
    ids = await store.submit(2, limits=TimeLimits(start=HOUR))
    for job_id in ids:
        await pass_time(store, job_id, 2 * HOUR)
    async with await store.connect() as somebody:
        await somebody.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (ids[0],))
        assert (await reap.expire(store.database, 0, EPOCHS))[0] == ids[1:]
        await somebody.rollback()
    assert (await reap.expire(store.database, 0, EPOCHS))[0] == ids[:1]


async def test_large_jobs_expire_in_statements_of_bounded_size(store: Bench) -> None:
    ids = await store.submit(20, payload=bytes(1 << 20), limits=TimeLimits(start=HOUR))
    for job_id in ids:
        await pass_time(store, job_id, 2 * HOUR)
    first, _ = await reap.expire(store.database, 0, EPOCHS)
    second, _ = await reap.expire(store.database, 0, EPOCHS)
    assert len(first) == reap.MAX_EXPIRE_BYTES >> 20
    assert sorted(first + second) == ids


async def test_overdue_attempts_are_found_the_longest_over_time_first(store: Bench) -> None:
    refs = await store.start_many(3, limits=TimeLimits(attempt=HOUR))
    await pass_time(store, refs[2].job_id, 3 * HOUR)
    await pass_time(store, refs[0].job_id, 2 * HOUR)
    assert await reap.attention(store.database, 0, [0]) == (False, True, False)
    found = await reap.overdue(store.database, 0, [0, 1])
    assert [one.ref for one in found] == [refs[2], refs[0]]
    assert {(one.shard, one.worker_id, one.claim_epoch, one.overdue) for one in found} == {(0, store.worker, 1, True)}
    assert await reap.overdue(store.database, 0, [1]) == []


async def test_running_jobs_of_a_shard_are_read_page_by_page(store: Bench) -> None:
    count = 2 * reap.PAGE + 1
    await store.submit(count)
    probe = store.probe(workers=[store.second_worker, store.worker, store.worker] * count)
    refs = sorted(job.ref for job in (await store.claim(probe)).jobs)
    assert len(refs) == count
    await store.start_many(1, shard=1)
    found = await reap.load_running(store.database, 0, 0)
    assert sorted(one.ref for one in found) == refs
    assert not any(one.overdue for one in found)
    by_shard = await reap.running_of_shards(store.database, 0, [0, 1, 2])
    assert {shard: len(jobs) for shard, jobs in by_shard.items()} == {0: count, 1: 1, 2: 0}
    assert sorted(one.ref for one in by_shard[0]) == refs


async def test_running_jobs_of_workers_are_found(store: Bench) -> None:
    other = await store.worker_named("w3")
    await store.submit(4)
    probe = store.probe(workers=[store.worker, store.second_worker, other, other])
    jobs = (await store.claim(probe)).jobs
    found = await reap.running_of_workers(store.database, 0, [0, 1], [store.worker, other])
    assert {one.ref for one in found} == {job.ref for job in jobs if job.worker_id != store.second_worker}


async def test_progress_is_kept_for_open_attempts_only(store: Bench) -> None:
    first, second = await store.start_many(2)
    stale = [(one, b"x") for one in (type(first)(first.job_id, 9), type(first)(4096 * 999, 1))]
    await reap.save_progress(store.database, 0, store.worker, [(second, b"2"), (first, b"1"), *stale])
    assert [(await store.row(ref.job_id)).progress for ref in (first, second)] == [b"1", b"2"]


async def test_unpark_wakes_the_most_urgent_of_a_key(store: Bench) -> None:
    await store.start(concurrency_key="k")
    [low] = await store.submit(concurrency_key="k", priority=5)
    [high] = await store.submit(concurrency_key="k", priority=1)
    [other] = await store.submit(concurrency_key="other")
    assert await store.claim_ids() == [other]
    assert await reap.attention(store.database, 0, [0]) == (False, False, True)
    woken, live = await reap.unpark(store.database, 0, EPOCHS, [(0, 1, "k", 1), (0, 1, "none", 3)])
    row = await store.row(high)
    assert woken == [DueJob(1, row.due_at, high, 0, store.handler)]
    assert live == {0}
    assert (row.state, (await store.row(low)).state) == (JobState.PENDING, JobState.PARKED)


async def test_keys_with_parked_jobs_and_room_are_found(store: Bench) -> None:
    """The note of a finish may be lost: these are found whatever happened."""
    refs = await store.start_many(3, concurrency_key="busy", concurrency_limit=3)
    await store.submit(2, concurrency_key="busy", concurrency_limit=3)
    await store.submit(2, shard=1, concurrency_key="free", concurrency_limit=2)
    assert await store.claim_ids() == []
    await store.sql("UPDATE jobs SET state = 2 WHERE concurrency_key = 'free'")
    assert await reap.parked_with_room(store.database, 0) == ([(1, 1, "free", 2)], None)
    back = Requeue(ref=refs[0], delay=HOUR, burn=True)
    await finish.requeue(store.database, 0, [back])
    keys, _ = await reap.parked_with_room(store.database, 0)
    assert sorted(keys) == [(0, 1, "busy", 1), (1, 1, "free", 2)]
    assert await reap.parked_with_room(store.database, 0, (0, 1, "busy")) == ([(1, 1, "free", 2)], None)
