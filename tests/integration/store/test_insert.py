"""Storing jobs: all or none, with what the policies say, and ids that nobody else has."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from server.domain.job import Backoff, JobState, TimeLimits
from server.domain.sharding import shard_of_id
from server.store import insert
from server.store.errors import Refused
from server.store.insert import BLOCK, IdBlock, PlacedJob, milliseconds
from tests.integration.store.bench import PARTITION_OF, SHARDS, Bench

HOUR = timedelta(hours=1)


async def test_everything_that_a_job_says_is_stored(store: Bench) -> None:
    due = datetime(2031, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    scheduled = datetime(2031, 1, 2, 3, 4, tzinfo=UTC)
    backoff = Backoff(max_attempts=9, initial=timedelta(milliseconds=250), multiplier=1.25, maximum=HOUR,
                      non_retryable=("Ärger", "b c"))  # fmt: skip
    limits = TimeLimits(start=HOUR, attempt=timedelta(seconds=90), total=24 * HOUR)
    job = store.job(
        payload=b"\x00\xff", content_type="x/y", name="näme", priority=5, due_at=due, backoff=backoff, limits=limits,
        concurrency_key="k", concurrency_limit=4, labels='{"ключ": "☃"}'.encode(), traceparent="00-t", schedule_id=77,
        scheduled_for=scheduled,
    )  # fmt: skip
    [stored] = await store.insert([job], shard=5)
    row = await store.row(stored.job_id)
    assert (stored.created, stored.differs, stored.due_at, stored.created_at) == (True, False, due, row.created_at)
    assert (row.shard, row.namespace_id, row.handler_id, row.state, row.attempt, row.claim) == (
        5, 1, store.handler, JobState.PENDING, 0, 0,
    )  # fmt: skip
    assert (row.payload, row.content_type, row.name, row.priority) == (b"\x00\xff", "x/y", "näme", 5)
    assert (row.due_at, row.deadline_at, row.expires_at) == (due, due + 24 * HOUR, due + HOUR)
    assert (row.max_attempts, row.retry_initial_ms, row.retry_multiplier, row.retry_max_ms) == (9, 250, 1.25, 3600000)
    assert (row.non_retryable, row.start_timeout_ms, row.attempt_timeout_ms, row.total_timeout_ms) == (
        ["Ärger", "b c"], 3600000, 90000, 86400000,
    )  # fmt: skip
    assert (row.concurrency_key, row.concurrency_limit, row.labels) == ("k", 4, '{"ключ": "☃"}'.encode())
    assert (row.traceparent, row.schedule_id, row.scheduled_for) == ("00-t", 77, scheduled)


async def test_what_a_job_does_not_say_is_null(store: Bench) -> None:
    [job_id] = await store.submit()
    row = await store.row(job_id)
    nulls = {name for name in row._fields if getattr(row, name) is None}
    assert nulls >= {
        "deadline_at", "expires_at", "concurrency_key", "labels", "traceparent", "non_retryable", "schedule_id",
        "scheduled_for", "start_timeout_ms", "attempt_timeout_ms", "total_timeout_ms", "open_claim", "progress",
    }  # fmt: skip
    assert row.due_at == row.created_at


async def test_delays_count_from_the_database_clock(store: Bench) -> None:
    [one] = await store.insert([store.job(delay=90 * HOUR)])
    assert one.due_at is not None
    assert one.created_at is not None
    assert one.due_at - one.created_at == 90 * HOUR


async def test_a_group_over_all_partitions_is_stored_in_order(store: Bench) -> None:
    numbers = await store.ids.take(SHARDS)
    placed = [PlacedJob(n << 12 | (n * 7) % SHARDS, store.job(name=str(n))) for n in numbers]
    results = await insert.insert_jobs(store.database, PARTITION_OF, placed)
    assert [one.job_id for one in results] == [one.job_id for one in placed]
    names = dict(await store.sql("SELECT id, name FROM jobs"))
    assert names == {one.job_id: one.job.name for one in placed}


async def test_a_group_is_stored_as_a_whole_or_not_at_all(store: Bench) -> None:
    numbers = await store.ids.take(3)
    placed = [PlacedJob(n << 12 | shard, store.job()) for n, shard in zip(numbers, (0, 20, 40), strict=True)]
    bad = replace(placed[2], job=store.job(priority=6))
    with pytest.raises(Refused) as caught:
        await insert.insert_jobs(store.database, PARTITION_OF, [*placed[:2], bad])
    assert caught.value.sqlstate == "23514"
    assert await store.sql("SELECT id FROM jobs") == []


async def test_a_firing_is_stored_once(store: Bench) -> None:
    job = store.job(schedule_id=7, scheduled_for=datetime(2030, 1, 1, tzinfo=UTC))
    await store.insert([job])
    with pytest.raises(Refused) as caught:
        await store.insert([job])
    assert caught.value.sqlstate == "23505"
    # Another shard's index does not know of it: a schedule and its jobs share a shard.
    await store.insert([job], shard=1)


async def test_ids_of_all_nodes_differ(store: Bench) -> None:
    nodes = [IdBlock(store.database) for _ in range(4)]
    takes = await asyncio.gather(*(nodes[n % 4].take(900) for n in range(48)))
    taken = [number for take in takes for number in take]
    assert len(set(taken)) == 48 * 900


async def test_a_block_that_is_too_small_is_left(store: Bench) -> None:
    ids = IdBlock(store.database)
    first = await ids.take(BLOCK - 1)
    second = await ids.take(2)
    assert second[0] // BLOCK > first[0] // BLOCK
    assert (len(first), len(second)) == (BLOCK - 1, 2)


async def test_an_old_block_is_left(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids sort by time over all nodes but for a minute."""
    monkeypatch.setattr(insert, "BLOCK_AGE_S", 0.05)
    ids = IdBlock(store.database)
    first = await ids.take(1)
    same = await ids.take(1)
    await asyncio.sleep(0.06)
    later = await ids.take(1)
    assert same[0] == first[0] + 1
    assert later[0] // BLOCK > first[0] // BLOCK


def test_milliseconds_are_rounded_up() -> None:
    micro = timedelta(microseconds=1)
    assert [milliseconds(span) for span in (None, 0 * micro, micro, 1000 * micro, 1001 * micro)] == [None, 0, 1, 1, 2]


async def test_ids_carry_their_shard(store: Bench) -> None:
    ids = [job_id for shard in (0, 17, 63) for job_id in await store.submit(shard=shard)]
    assert [shard_of_id(job_id) for job_id in ids] == [0, 17, 63]
    assert [(await store.row(job_id)).shard for job_id in ids] == [0, 17, 63]
