"""Dedupe keys: one job for each, whatever happens at the same time, and for as long as promised."""

import asyncio
from datetime import timedelta
from typing import Any

from server.domain.job import DedupeKey, NewJob, Submitted
from server.domain.outcome import Requeue
from server.store import finish, reap
from server.store.errors import Unavailable, UnknownOutcome
from server.store.insert import MIN_KEY_LIFE, PlacedJob, insert_jobs
from tests.integration.store.bench import EPOCH, PARTITION_OF, Bench, bench
from tests.support.waiting import eventually

EPOCHS = [(0, EPOCH)]


def keyed(store: Bench, key: str = "k", content: bytes = b"h", ttl: timedelta = timedelta(0), **changes: Any) -> NewJob:
    return store.job(dedupe=DedupeKey(key=key, ttl=ttl, content_hash=content), **changes)


async def pass_time(store: Bench, by: timedelta) -> None:
    await store.sql("UPDATE dedupe_keys SET expires_at = expires_at - %s, sweep_at = sweep_at - %s", by, by)


async def leave(store: Bench, job_id: int) -> None:
    await store.sql("DELETE FROM jobs WHERE id = %s", job_id)


async def keys(store: Bench) -> list[str]:
    return [key for (key,) in await store.sql("SELECT key FROM dedupe_keys ORDER BY key")]


async def test_the_same_key_leads_to_the_same_job(store: Bench) -> None:
    [first] = await store.insert([keyed(store)])
    [again] = await store.insert([keyed(store)])
    [other] = await store.insert([keyed(store, content=b"other")])
    assert (first.created, first.differs) == (True, False)
    assert again == Submitted(job_id=first.job_id, created=False, differs=False)
    assert other == Submitted(job_id=first.job_id, created=False, differs=True)
    assert len(await store.sql("SELECT id FROM jobs")) == 1


async def test_a_key_is_one_of_its_namespace_handler_and_concurrency_key(store: Bench) -> None:
    handler = await store.handler_named("other")
    [(namespace,)] = await store.sql("INSERT INTO namespaces (name) VALUES ('second') RETURNING id")
    jobs = [
        keyed(store),
        keyed(store, handler_id=handler),
        keyed(store, namespace_id=namespace),
        keyed(store, concurrency_key="c"),
        keyed(store, key="K"),
    ]
    assert [one.created for one in await store.insert(jobs)] == [True] * 5
    assert [one.created for one in await store.insert(jobs)] == [False] * 5


async def test_within_a_group_the_first_one_takes_the_key(store: Bench) -> None:
    jobs = [keyed(store), store.job(), keyed(store, content=b"x"), keyed(store, key="l"), keyed(store)]
    results = await store.insert(jobs)
    assert [(one.created, one.differs) for one in results] == [
        (True, False), (True, False), (False, True), (True, False), (False, False),
    ]  # fmt: skip
    assert results[2].job_id == results[4].job_id == results[0].job_id
    assert len(await store.sql("SELECT id FROM jobs")) == 3


async def test_fifty_submits_at_once_make_one_job(database: str) -> None:
    async with bench(database, api_connections=20) as store:
        results = await asyncio.gather(*(store.insert([keyed(store)]) for _ in range(50)))
    every = [one for [one] in results]
    assert sorted(one.created for one in every) == [False] * 49 + [True]
    assert len({one.job_id for one in every}) == 1


async def test_fifty_submits_of_many_keys_in_any_order_make_one_job_for_each(database: str) -> None:
    """Groups take their keys in one order, or they would deadlock."""
    async with bench(database, api_connections=20) as store:
        names = [f"k{n}" for n in range(10)]
        groups = [[keyed(store, key=name) for name in (names[n % 10 :] + names[: n % 10])] for n in range(50)]
        results = await asyncio.gather(*(store.insert(group, shard=n % 2 * 20) for n, group in enumerate(groups)))
        stored = await store.sql("SELECT count(*) FROM jobs")
    assert sum(one.created for group in results for one in group) == 20 == stored[0][0]


async def test_a_holder_that_rolls_back_leaves_the_key_to_a_rival(store: Bench) -> None:
    """One of those that submit at the same time dies before its commit: one of the others makes the job."""
    async with await store.connect() as holder:
        await holder.execute(
            "INSERT INTO dedupe_keys (shard, namespace_id, handler_id, key, job_id, content_hash, expires_at, sweep_at)"
            " VALUES (0, 1, %s, 'k', 4096, 'h', now() + interval '1 h', now())",
            (store.handler,),
        )
        rivals = [asyncio.create_task(store.insert([keyed(store)])) for _ in range(8)]
        await eventually(store.waiting_for_locks, what="a rival waits")
        await holder.rollback()
    every = [one for [one] in await asyncio.gather(*rivals)]
    assert sorted(one.created for one in every) == [False] * 7 + [True]
    assert [job_id for (job_id,) in await store.sql("SELECT id FROM jobs")] == [every[0].job_id]


async def test_holders_killed_at_random_instants_leave_one_job(store: Bench) -> None:
    async def kill() -> None:
        for _ in range(20):
            await store.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'shardwheel-api' ORDER BY random() LIMIT 1"
            )
            await asyncio.sleep(0.003)

    async def submit() -> Submitted | None:
        for _ in range(50):
            try:
                [one] = await store.insert([keyed(store)])
            except (UnknownOutcome, Unavailable):
                # Killed: the client does not know what became of it and asks again, as clients do.
                await asyncio.sleep(0.01)
            else:
                return one
        return None

    killing = asyncio.create_task(kill())
    every = await asyncio.gather(*(submit() for _ in range(50)))
    await killing
    stored = [job_id for (job_id,) in await store.sql("SELECT id FROM jobs")]
    assert len(stored) == 1
    assert {one.job_id for one in every if one is not None} == set(stored)
    # The submit that made the job may be one whose answer was lost.
    assert sum(one.created for one in every if one is not None) <= 1


async def test_key_is_kept_for_its_ttl_and_at_least_ten_minutes(store: Bench) -> None:
    """A client whose answer was lost finds its job, finished or not."""
    assert timedelta(minutes=10) <= MIN_KEY_LIFE
    [short] = await store.insert([keyed(store, key="short", ttl=timedelta(seconds=1))])
    [long] = await store.insert([keyed(store, key="long", ttl=timedelta(days=2))])
    await leave(store, short.job_id)
    await leave(store, long.job_id)
    await pass_time(store, timedelta(minutes=9))
    assert [one.created for one in await store.insert([keyed(store, key="short"), keyed(store, key="long")])] == [
        False
    ] * 2
    await pass_time(store, timedelta(minutes=2))
    [again] = await store.insert([keyed(store, key="short", content=b"new")])
    assert (again.created, again.differs) == (True, False)
    assert again.job_id != short.job_id
    [still] = await store.insert([keyed(store, key="long")])
    assert still == Submitted(job_id=long.job_id, created=False)


async def test_key_of_a_live_job_outlives_its_ttl(store: Bench) -> None:
    [one] = await store.insert([keyed(store)])
    await pass_time(store, timedelta(days=1))
    await reap.clean_keys(store.database, 0, EPOCHS)
    [again] = await store.insert([keyed(store)])
    assert again == Submitted(job_id=one.job_id, created=False)
    # Running, and between two tries, it is still alive.
    [job] = (await store.claim()).jobs
    assert not (await store.insert([keyed(store)]))[0].created
    await finish.requeue(store.database, 0, [Requeue(ref=job.ref, delay=timedelta(hours=1), burn=True)])
    assert not (await store.insert([keyed(store)]))[0].created


async def test_clean_up_removes_keys_that_are_over_and_no_others(store: Bench) -> None:
    gone = await store.insert([keyed(store, key=f"gone{n}") for n in range(3)])
    for one in gone:
        await leave(store, one.job_id)
    live, future = await store.insert([keyed(store, key="live"), keyed(store, key="future", delay=timedelta(days=5))])
    await pass_time(store, timedelta(minutes=11))
    [fresh] = await store.insert([keyed(store, key="fresh")])
    await leave(store, fresh.job_id)
    [elsewhere] = await store.insert([keyed(store, key="shard 1")], shard=1)
    await leave(store, elsewhere.job_id)
    await store.sql("UPDATE dedupe_keys SET sweep_at = now(), expires_at = now() WHERE shard = 1")
    assert await reap.clean_keys(store.database, 0, EPOCHS) == {0}
    assert await keys(store) == ["fresh", "future", "live", "shard 1"]
    # Those of live jobs are looked at again later on, not at every turn.
    looked = await store.sql("SELECT key FROM dedupe_keys WHERE sweep_at > now() + interval '59 min' ORDER BY key")
    assert [key for (key,) in looked] == ["future", "live"]
    await leave(store, live.job_id)
    await pass_time(store, timedelta(hours=2))
    await reap.clean_keys(store.database, 0, EPOCHS)
    assert await keys(store) == ["future", "shard 1"]
    assert future.created


async def test_clean_up_waits_for_nobody(store: Bench) -> None:
    one, two = await store.insert([keyed(store, key="a"), keyed(store, key="b")])
    await leave(store, one.job_id)
    await leave(store, two.job_id)
    await pass_time(store, timedelta(hours=1))
    async with await store.connect() as somebody:
        await somebody.execute("SELECT FROM dedupe_keys WHERE key = 'a' FOR UPDATE")
        await reap.clean_keys(store.database, 0, EPOCHS)
        assert await keys(store) == ["a"]


async def test_a_key_that_is_cleaned_up_during_the_submit_is_taken(store: Bench) -> None:
    """Held when the submit asks for it, gone when it looks whose it is: the new job is not left without its key."""
    [old] = await store.insert([keyed(store)])
    await leave(store, old.job_id)
    await store.sql(
        "CREATE FUNCTION public.clean_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"DELETE FROM shardwheel_store.dedupe_keys WHERE job_id = {old.job_id}; RETURN NULL; END $$"
    )
    await store.sql(
        "CREATE TRIGGER between AFTER INSERT ON dedupe_keys_0000 FOR EACH STATEMENT EXECUTE FUNCTION public.clean_up()"
    )
    first, second = await store.insert([keyed(store), keyed(store)])
    assert (first.created, second.created, second.job_id) == (True, False, first.job_id)
    [again] = await store.insert([keyed(store)])
    assert again == Submitted(job_id=first.job_id, created=False)


async def test_groups_over_partitions_take_their_keys(store: Bench) -> None:
    numbers = await store.ids.take(4)
    shards = (0, 20, 40, 60)
    placed = [PlacedJob(n << 12 | shard, keyed(store)) for n, shard in zip(numbers, shards, strict=True)]
    assert all(one.created for one in await insert_jobs(store.database, PARTITION_OF, placed))
    numbers = await store.ids.take(4)
    again = [PlacedJob(n << 12 | shard, keyed(store)) for n, shard in zip(numbers, shards[::-1], strict=True)]
    results = await insert_jobs(store.database, PARTITION_OF, again)
    assert [one.job_id for one in results] == [one.job_id for one in placed[::-1]]
