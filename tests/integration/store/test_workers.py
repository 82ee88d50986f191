"""Leases of workers: renewed when needed, ended once and for all, never by a clock of ours."""

from datetime import datetime, timedelta

from server.domain.ending import ANY_LEASE, NO_LEASE
from server.store import workers
from tests.integration.store.bench import LEASE, NAMESPACE, Bench

ZERO = timedelta(0)


async def lease_of(store: Bench, worker_id: int) -> datetime:
    [(until,)] = await store.sql("SELECT lease_until FROM workers WHERE id = %s", worker_id)
    assert isinstance(until, datetime)
    return until


async def left(store: Bench, worker_id: int) -> timedelta:
    return await lease_of(store, worker_id) - await store.now()


async def register(store: Bench, name: str, incarnation: int, lease: timedelta = LEASE) -> int | None:
    return await workers.register(store.database, NAMESPACE, name, incarnation, "sdk", b'{"h": 3}', lease)


async def test_registering_again_renews_and_never_shortens(store: Bench) -> None:
    first = await register(store, "w", 1)
    assert first is not None
    before = await lease_of(store, first)
    assert await register(store, "w", 1, timedelta(seconds=1)) == first
    assert await lease_of(store, first) == before
    assert await register(store, "w", 1, timedelta(minutes=1)) == first
    assert await left(store, first) > timedelta(seconds=50)
    assert await register(store, "w", 2) != first


async def test_an_incarnation_that_has_ended_cannot_come_back(store: Bench) -> None:
    worker_id = await register(store, "w", 1)
    assert worker_id is not None
    await workers.end(store.database, [worker_id], "goodbye")
    assert await register(store, "w", 1) is None
    await workers.renew(store.database, [worker_id], LEASE)
    assert await left(store, worker_id) <= ZERO
    assert not await workers.keep(store.database, NAMESPACE, "w", 1, LEASE)
    # Ended is ended: the first reason stays.
    await workers.end(store.database, [worker_id], "superseded")
    assert await store.sql("SELECT end_reason FROM workers WHERE id = %s", worker_id) == [("goodbye",)]


async def test_other_incarnations_are_those_of_the_name_that_have_not_ended(store: Bench) -> None:
    [(namespace,)] = await store.sql("INSERT INTO namespaces (name) VALUES ('second') RETURNING id")
    await workers.register(store.database, namespace, "w", 1, "sdk", b"{}", LEASE)
    ended = await register(store, "w", 1)
    silent = await register(store, "w", 2, ZERO)
    alive = await register(store, "w", 3)
    assert ended is not None
    await workers.end(store.database, [ended], "goodbye")
    others = await workers.other_incarnations(store.database, NAMESPACE, "w", 4)
    assert [(one.worker_id, one.incarnation, one.leased) for one in others] == [(silent, 2, False), (alive, 3, True)]


async def test_renewal_writes_only_when_a_third_of_the_lease_has_passed(store: Bench) -> None:
    fresh = await store.worker_named("fresh", LEASE)
    old = await store.worker_named("old", LEASE * 0.6)
    over = await store.worker_named("over", ZERO)
    before = await lease_of(store, fresh)
    now = await workers.renew(store.database, [fresh, old, over, 10**9], LEASE)
    assert await lease_of(store, fresh) == before
    assert await lease_of(store, old) == await lease_of(store, over) == now + LEASE


async def test_renewal_without_workers_reads_the_clock(store: Bench) -> None:
    before = await store.now()
    assert before <= await workers.renew(store.database, [], LEASE) <= await store.now()


async def test_dead_are_those_that_ended_and_if_asked_those_whose_lease_is_over(store: Bench) -> None:
    alive = await store.worker_named("alive")
    silent = await store.worker_named("silent", ZERO)
    ended = await store.worker_named("ended")
    await workers.end(store.database, [ended], "goodbye")
    every = [alive, silent, ended]
    assert await workers.dead(store.database, every, as_of=NO_LEASE) == [ended]
    assert sorted(await workers.dead(store.database, every, as_of=ANY_LEASE)) == [silent, ended]


async def test_a_lease_that_was_ended_by_a_lost_stream_can_be_renewed(store: Bench) -> None:
    await workers.expire_lease(store.database, store.worker)
    assert await workers.dead(store.database, [store.worker], as_of=ANY_LEASE) == [store.worker]
    await workers.renew(store.database, [store.worker], LEASE)
    assert await workers.dead(store.database, [store.worker], as_of=ANY_LEASE) == []


async def test_expiring_a_lease_that_is_over_does_not_lengthen_it(store: Bench) -> None:
    silent = await store.worker_named("silent", timedelta(hours=-1))
    before = await lease_of(store, silent)
    await workers.expire_lease(store.database, silent)
    assert await lease_of(store, silent) == before


async def test_keep_renews_by_name(store: Bench) -> None:
    silent = await register(store, "w", 7, ZERO)
    assert silent is not None
    assert await workers.keep(store.database, NAMESPACE, "w", 7, LEASE)
    assert await left(store, silent) > ZERO
    assert not await workers.keep(store.database, NAMESPACE, "w", 8, LEASE)
    assert not await workers.keep(store.database, NAMESPACE + 1, "w", 7, LEASE)


async def test_live_workers_are_listed_by_name(store: Bench) -> None:
    await store.worker_named("silent", ZERO)
    await register(store, "a", 5)
    found = await workers.live(store.database, NAMESPACE)
    assert [(one.name, one.incarnation) for one in found] == [("a", 5), ("w1", 1), ("w2", 1)]
    assert (found[0].sdk, found[0].handlers) == ("sdk", b'{"h": 3}')


async def test_rows_of_long_dead_workers_are_forgotten(store: Bench) -> None:
    old = await store.worker_named("old", timedelta(days=-9))
    recent = await store.worker_named("recent", timedelta(days=-7))
    await workers.forget(store.database, timedelta(days=8))
    rows = {worker_id for (worker_id,) in await store.sql("SELECT id FROM workers")}
    assert old not in rows
    assert rows == {recent, store.worker, store.second_worker}
