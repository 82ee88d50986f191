"""The fence: who may raise an epoch, and that a statement of a former owner does nothing at all."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from server.domain.ending import Recheck
from server.domain.job import AttemptOutcome, DedupeKey, JobState
from server.domain.outcome import Finish, Requeue
from server.store import claim, finish, reap, shards
from server.store.database import Database
from server.store.errors import Locked
from server.store.fence import FENCE
from tests.integration.store.bench import INCARNATION, NODE, Bench, bench
from tests.support.waiting import eventually

OTHER = 12


async def test_fence_in_raises_the_epoch_for_a_newer_token_only(store: Bench) -> None:
    assert await shards.fence_in(store.database, [(0, 1, 2)], "node-2", OTHER) == {0: 2}
    for generation, token in [(1, 2), (1, 1), (0, 99)]:
        assert await shards.fence_in(store.database, [(0, generation, token)], "node-3", 13) == {}
    # A new generation of the coordinator counts from anew.
    assert await shards.fence_in(store.database, [(0, 2, 1)], "node-3", 13) == {0: 3}
    row = (await shards.list_shards(store.database))[0]
    assert (row.shard, row.epoch, row.owner, row.owner_incarnation) == (0, 3, "node-3", 13)


async def test_fence_in_accepts_each_lease_for_itself(store: Bench) -> None:
    await shards.fence_in(store.database, [(1, 1, 5)], "node-2", OTHER)
    accepted = await shards.fence_in(store.database, [(2, 1, 4), (1, 1, 4), (0, 1, 4)], "node-3", 13)
    assert accepted == {0: 2, 2: 2}


async def test_fence_in_whose_answer_was_lost_is_read_back(store: Bench) -> None:
    leases = [(0, 1, 2), (1, 1, 2)]
    first = await shards.fence_in(store.database, leases, NODE, INCARNATION)
    assert await shards.fence_in(store.database, leases, NODE, INCARNATION) == first == {0: 2, 1: 2}
    # The same lease in other hands is nobody's: not even of a new incarnation of the same node.
    assert await shards.fence_in(store.database, leases, NODE, OTHER) == {}


async def test_fence_in_waits_for_a_fenced_statement_and_then_wins(store: Bench) -> None:
    await store.submit()
    async with await store.connect() as owner:
        await owner.execute(b"WITH " + FENCE.encode() + b" SELECT * FROM me", ([0], [1]))
        taking = asyncio.create_task(shards.fence_in(store.database, [(0, 1, 2)], "node-2", OTHER))
        await eventually(store.waiting_for_locks, what="the fence-in waits")
        assert not taking.done()
        await owner.commit()
        assert await taking == {0: 2}
    result = await store.claim()
    assert (result.jobs, result.live_shards, result.now) == ([], frozenset(), None)


async def test_fenced_statement_waits_for_a_fence_in_and_then_finds_nothing(store: Bench) -> None:
    [job_id] = await store.submit()
    async with await store.connect() as other:
        await other.execute("UPDATE shards SET epoch = epoch + 1 WHERE shard = 0")
        claiming = asyncio.create_task(store.claim())
        await eventually(store.waiting_for_locks, what="the claim waits")
        await other.commit()
    assert (await claiming).live_shards == frozenset()
    assert (await store.row(job_id)).state == JobState.PENDING


@pytest.fixture
async def impatient(database: str) -> AsyncIterator[Database]:
    """Pools whose statements wait for a lock for a second at the most."""
    async with bench(database) as store:
        await store.sql(
            "ALTER ROLE CURRENT_USER IN DATABASE " + database.rpartition("/")[2] + " SET lock_timeout = '1s'"
        )
        fresh = Database(database, hot_connections=4, api_connections=2)
        await fresh.open()
        try:
            yield fresh
        finally:
            await fresh.close()


@contextlib.asynccontextmanager
async def holding(dsn: str, statement: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session that holds what a statement locks, and is never done."""
    options = "-c idle_in_transaction_session_timeout=0 -c lock_timeout=0"
    connection = await psycopg.AsyncConnection.connect(dsn, options=options)
    try:
        await connection.execute(statement.encode())
        yield connection
    finally:
        await connection.close()


SHARE = "SELECT FROM shardwheel_store.shards WHERE shard IN (0, 2) FOR SHARE"


async def test_fence_in_ends_a_stopped_owner_that_holds_its_locks(impatient: Database, database: str) -> None:
    async with holding(database, SHARE) as first, holding(database, SHARE) as second:
        began = time.monotonic()
        leases = [(0, 1, 2), (1, 1, 2), (2, 1, 2)]
        assert await shards.fence_in(impatient, leases, "node-2", OTHER) == {0: 2, 1: 2, 2: 2}
        assert time.monotonic() - began < 4.0
        for owner in (first, second):
            with pytest.raises(psycopg.errors.AdminShutdown):
                await owner.execute("SELECT 1")


async def test_fence_in_goes_round_the_locks_of_strangers(impatient: Database, database: str) -> None:
    [name] = await impatient.run("SELECT current_database()::text")
    role = f"stranger_{name[0]}"
    for statement in (
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT USAGE ON SCHEMA shardwheel_store TO {role}",
        f"GRANT SELECT, UPDATE ON shards TO {role}",
    ):
        await impatient.run(statement.encode())
    try:
        async with holding(make_conninfo(database, user=role, password="x"), SHARE) as stranger:
            assert await shards.fence_in(impatient, [(0, 1, 2), (1, 1, 2)], "node-2", OTHER) == {1: 2}
            with pytest.raises(Locked):
                await shards.fence_in(impatient, [(0, 1, 2), (2, 1, 2)], "node-2", OTHER)
            await stranger.execute("SELECT 1")
        assert await shards.fence_in(impatient, [(0, 1, 2), (1, 1, 2)], "node-2", OTHER) == {0: 2, 1: 2}
    finally:
        await impatient.run(f"DROP OWNED BY {role}".encode())
        await impatient.run(f"DROP ROLE {role}".encode())


async def test_bump_is_for_the_owner_at_its_epoch(store: Bench) -> None:
    assert await shards.bump(store.database, 0, 2, INCARNATION) is None
    assert await shards.bump(store.database, 0, 1, OTHER) is None
    assert await shards.bump(store.database, 0, 1, INCARNATION) == 2
    assert await shards.bump(store.database, 0, 1, INCARNATION) is None
    # The token stays: nobody with an older lease can come in between.
    assert await shards.fence_in(store.database, [(0, 1, 1)], "node-2", OTHER) == {}


async def test_bump_waits_for_a_claim_under_way(store: Bench) -> None:
    """What a claim of unknown outcome has taken is certain once the epoch is raised."""
    async with await store.connect() as claiming:
        await claiming.execute(b"WITH " + FENCE.encode() + b" SELECT * FROM me", ([0], [1]))
        bumping = asyncio.create_task(shards.bump(store.database, 0, 1, INCARNATION))
        await eventually(store.waiting_for_locks, what="the bump waits")
        await claiming.rollback()
    assert await bumping == 2


async def test_release_clears_only_ones_own(store: Bench) -> None:
    await shards.fence_in(store.database, [(1, 1, 2)], "node-2", OTHER)
    await shards.release(store.database, [(0, 1), (1, 1), (2, 0)], INCARNATION)
    rows = await shards.list_shards(store.database)
    assert [(row.owner, row.epoch) for row in rows[:3]] == [(None, 1), ("node-2", 2), (NODE, 1)]


STALE = [(0, 0)]
FUTURE = [(0, 2)]


def failed(job: Any) -> Finish:
    outcome = AttemptOutcome.FAILED
    return Finish(ref=job.ref, state=JobState.FAILED, error_type="E", message="m", outcome=outcome)


def back(job: Any) -> Requeue:
    return Requeue(ref=job.ref, delay=None, burn=False)


Act: TypeAlias = Callable[[Bench, Any, list[tuple[int, int]]], Awaitable[object]]


def finish_by(recheck: Recheck) -> Act:
    return lambda store, job, epochs: finish.fenced_finish(store.database, 0, epochs, [failed(job)], recheck)


def requeue_by(recheck: Recheck) -> Act:
    return lambda store, job, epochs: finish.fenced_requeue(store.database, 0, epochs, [back(job)], recheck)


# Each would act at once if its epoch were right; the last test of these makes sure of that.
FENCED: dict[str, Act] = {
    "claim": lambda store, job, epochs: claim.claim(store.database, 0, epochs, [store.probe()]),
    "expire": lambda store, job, epochs: reap.expire(store.database, 0, epochs),
    "unpark": lambda store, job, epochs: reap.unpark(store.database, 0, epochs, [(0, 1, "parked", 5)]),
    "clean keys": lambda store, job, epochs: reap.clean_keys(store.database, 0, epochs),
    **{f"finish {recheck.value}": finish_by(recheck) for recheck in Recheck},
    **{f"requeue {recheck.value}": requeue_by(recheck) for recheck in Recheck},
}


async def prepare(store: Bench, *, published: bool = False) -> Any:
    """Something to do for every fenced statement: running over its time on a lost worker, or published and not started
    in time; due, late, parked, old."""
    lost = await store.worker_named("lost", timedelta(0))
    await store.submit(limits=store.job().limits)
    [job] = (await store.claim(store.probe(1, workers=[lost]))).jobs
    await store.sql("UPDATE jobs SET timeout_at = now() - interval '1 min' WHERE id = %s", job.job_id)
    if published:
        await store.sql("UPDATE jobs SET worker_id = -handler_id WHERE id = %s", job.job_id)
    dedupe = DedupeKey(key="k", ttl=timedelta(0), content_hash=b"h")
    [held] = await store.insert([store.job(dedupe=dedupe)])
    await store.sql("DELETE FROM jobs WHERE id = %s", held.job_id)
    await store.sql("UPDATE dedupe_keys SET expires_at = now() - interval '1 s', sweep_at = now() - interval '1 s'")
    [late] = await store.submit()
    await store.sql("UPDATE jobs SET expires_at = now() - interval '1 s' WHERE id = %s", late)
    [parked] = await store.submit(concurrency_key="parked")
    await store.sql("UPDATE jobs SET state = 2 WHERE id = %s", parked)
    await store.submit()
    return job


async def everything(store: Bench) -> list[Any]:
    tables = ("jobs", "dedupe_keys", "job_history", "attempts", "shards")
    return [await store.sql(f"SELECT t::text FROM {table} t ORDER BY 1") for table in tables]


async def test_statements_of_a_former_owner_do_nothing(store: Bench) -> None:
    for published in (False, True):
        await store.sql("TRUNCATE jobs, dedupe_keys, workers")
        job = await prepare(store, published=published)
        before = await everything(store)
        for epochs in (STALE, FUTURE):
            for name, act in FENCED.items():
                await act(store, job, epochs)
                assert await everything(store) == before, name


@pytest.mark.parametrize("name", FENCED)
async def test_the_same_statement_of_the_owner_acts(store: Bench, name: str) -> None:
    job = await prepare(store, published=Recheck.NOT_STARTED.value in name)
    before = await everything(store)
    await FENCED[name](store, job, [(0, 1)])
    assert await everything(store) != before


async def test_only_the_shards_still_owned_are_served(store: Bench) -> None:
    [mine] = await store.submit(shard=0)
    [taken] = await store.submit(shard=1)
    await shards.fence_in(store.database, [(1, 1, 2)], "node-2", OTHER)
    result = await store.claim(store.probe(shard=0), store.probe(shard=1))
    assert [job.job_id for job in result.jobs] == [mine]
    assert result.live_shards == {0}
    assert (await store.row(taken)).state == JobState.PENDING


async def test_fence_takes_no_lock_on_other_shards(store: Bench) -> None:
    async with await store.connect() as owner:
        await owner.execute(b"WITH " + FENCE.encode() + b" SELECT * FROM me", ([0], [1]))
        assert await shards.fence_in(store.database, [(1, 1, 2)], "node-2", OTHER) == {1: 2}
