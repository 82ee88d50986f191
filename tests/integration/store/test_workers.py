"""Leases of workers: renewed when needed, ended once and for all, never by a clock of ours."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from server.domain.ending import ANY_LEASE, NO_LEASE
from server.domain.worker_lease import Admission, Losses, Renewal
from server.store import workers
from tests.integration.store.bench import LEASE, NAMESPACE, Bench

ZERO = timedelta(0)


async def lease_of(store: Bench, worker_id: int) -> datetime:
    [(until,)] = await store.sql("SELECT lease_until FROM workers WHERE id = %s", worker_id)
    assert isinstance(until, datetime)
    return until


async def left(store: Bench, worker_id: int) -> timedelta:
    return await lease_of(store, worker_id) - await store.now()


async def admit(store: Bench, name: str, incarnation: int, lease: timedelta = LEASE, **rule: Any) -> Admission:
    return await workers.admit(store.database, NAMESPACE, name, incarnation, "sdk", b'{"h": 3}', lease, **rule)


async def register(store: Bench, name: str, incarnation: int, lease: timedelta = LEASE) -> int:
    worker_id = (await admit(store, name, incarnation, lease)).worker_id
    assert worker_id is not None
    return worker_id


async def renew(store: Bench, *worker_ids: int, age: timedelta = ZERO, quiet: timedelta = LEASE) -> Renewal:
    return await workers.renew(store.database, dict.fromkeys(worker_ids, age), LEASE, quiet)


async def streams(store: Bench, worker_id: int) -> tuple[bool, bool]:
    """Whether a worker is in doubt, and whether it is lost."""
    [found] = await store.sql(
        "SELECT doubted_at IS NOT NULL, lost_at IS NOT NULL FROM workers WHERE id = %s", worker_id
    )
    return found[0], found[1]


async def test_registering_again_renews_and_never_shortens(store: Bench) -> None:
    first = await register(store, "w", 1)
    before = await lease_of(store, first)
    assert await register(store, "w", 1, timedelta(seconds=1)) == first
    assert await lease_of(store, first) == before
    assert await register(store, "w", 1, timedelta(minutes=1)) == first
    assert await left(store, first) > timedelta(seconds=50)


async def test_an_incarnation_that_has_ended_cannot_come_back(store: Bench) -> None:
    worker_id = await register(store, "w", 1)
    await workers.end(store.database, [worker_id], "goodbye")
    assert await admit(store, "w", 1) == Admission(None)
    assert (await renew(store, worker_id, store.worker)).ended == [worker_id]
    assert await left(store, worker_id) <= ZERO
    assert not await workers.keep(store.database, NAMESPACE, "w", 1, LEASE)
    # Ended is ended: the first reason stays.
    await workers.end(store.database, [worker_id], "superseded")
    assert await store.sql("SELECT end_reason FROM workers WHERE id = %s", worker_id) == [("goodbye",)]


async def test_a_newer_incarnation_supersedes_one_whose_lease_is_over(store: Bench) -> None:
    [(namespace,)] = await store.sql("INSERT INTO namespaces (name) VALUES ('second') RETURNING id")
    stranger = (await workers.admit(store.database, namespace, "w", 1, "sdk", b"{}", ZERO)).worker_id
    silent = await register(store, "w", 2, ZERO)
    admission = await admit(store, "w", 3)
    assert admission == Admission(admission.worker_id, superseded=[silent])
    assert await store.sql("SELECT id, end_reason FROM workers WHERE ended_at IS NOT NULL") == [(silent, "superseded")]
    # The older one comes too late: it must not end its successor, not even a silent one.
    await store.sql("UPDATE workers SET lease_until = now() WHERE id = %s", admission.worker_id)
    assert await admit(store, "w", 2) == Admission(None)
    assert await store.sql("SELECT count(*) FROM workers WHERE id = ANY(%s) AND ended_at IS NULL",
                           [stranger, admission.worker_id]) == [(2,)]  # fmt: skip


async def test_a_name_is_taken_while_some_node_hears_its_worker(store: Bench) -> None:
    older = await register(store, "w", 1)
    assert await admit(store, "w", 2) == Admission(None, leased=True)
    # A node that is alone knows best; one that hears the worker itself, too.
    assert await admit(store, "w", 2, alone=True, heard=[older]) == Admission(None, heard=True)
    await store.sql("UPDATE workers SET lease_until = now() WHERE id = %s", older)
    assert await admit(store, "w", 2, heard=[older]) == Admission(None, heard=True)
    await renew(store, older)
    admission = await admit(store, "w", 2, alone=True)
    assert admission.superseded == [older]


async def test_a_doubt_frees_the_name_after_a_while(store: Bench) -> None:
    older = await register(store, "w", 1)
    await workers.doubt(store.database, [older])
    assert await admit(store, "w", 2, settling=LEASE) == Admission(None, undecided=True)
    await renew(store, older)
    assert await admit(store, "w", 2, settling=LEASE) == Admission(None, leased=True)
    await workers.doubt(store.database, [older])
    assert (await admit(store, "w", 2, settling=ZERO)).superseded == [older]


async def test_of_incarnations_that_come_at_the_same_time_one_gets_in(store: Bench) -> None:
    for name in ("a", "b", "c", "d"):
        older = await register(store, name, 999, ZERO)
        admissions = await asyncio.gather(*(admit(store, name, number) for number in range(1, 7)))
        [winner] = [one for one in admissions if one.worker_id is not None]
        assert winner.superseded == [older]
        assert sum(one.leased for one in admissions) == 5
    # And where no row was there before.
    admissions = await asyncio.gather(*(admit(store, "new", number) for number in range(1, 7)))
    assert sum(one.worker_id is not None for one in admissions) == 1
    # One incarnation, however, may come to all nodes at the same time.
    admissions = await asyncio.gather(*(admit(store, "same", 1) for _ in range(6)))
    assert len({one.worker_id for one in admissions}) == 1


async def test_renewal_writes_only_when_a_third_of_the_lease_has_passed(store: Bench) -> None:
    fresh = await store.worker_named("fresh", LEASE)
    old = await store.worker_named("old", LEASE * 0.6)
    over = await store.worker_named("over", ZERO)
    before = await lease_of(store, fresh)
    renewal = await renew(store, fresh, old, over, 10**9)
    assert await lease_of(store, fresh) == before
    assert await lease_of(store, old) == await lease_of(store, over) == renewal.now + LEASE
    assert renewal.ended == []


async def test_a_lease_reaches_from_when_the_worker_was_heard(store: Bench) -> None:
    worker = await store.worker_named("w", LEASE * 0.4)
    renewal = await renew(store, worker, age=timedelta(seconds=3))
    until = renewal.now + timedelta(seconds=12)
    assert await lease_of(store, worker) == until
    # It is never cut short, and not written for a little.
    await renew(store, worker, age=timedelta(seconds=6))
    await renew(store, worker, age=timedelta(seconds=1))
    assert await lease_of(store, worker) == until
    # But one that falls silent gets all of it.
    renewal = await renew(store, worker, age=timedelta(seconds=1), quiet=timedelta(seconds=0.5))
    assert await lease_of(store, worker) == renewal.now + timedelta(seconds=14)


async def test_a_lease_from_before_the_clock_went_back_is_set_right(store: Bench) -> None:
    """It would outlive a worker that falls silent by as much as the clock went back."""
    worker_id = await register(store, "w", 1)
    await store.sql("UPDATE workers SET lease_until = lease_until + interval '5 min' WHERE id = %s", worker_id)
    await renew(store, worker_id)
    assert LEASE - timedelta(seconds=2) < await left(store, worker_id) <= LEASE


async def test_renewal_without_workers_reads_the_clock(store: Bench) -> None:
    before = await store.now()
    assert before <= (await renew(store)).now <= await store.now()


async def test_dead_are_those_that_ended_and_if_asked_those_whose_lease_is_over(store: Bench) -> None:
    alive = await store.worker_named("alive")
    silent = await store.worker_named("silent", ZERO)
    ended = await store.worker_named("ended")
    await workers.end(store.database, [ended], "goodbye")
    every = [alive, silent, ended]
    assert await workers.dead(store.database, every, as_of=NO_LEASE) == [ended]
    assert sorted(await workers.dead(store.database, every, as_of=ANY_LEASE)) == [silent, ended]


async def test_a_doubt_that_stands_for_the_grace_is_a_loss(store: Bench) -> None:
    both = [store.worker, store.second_worker]
    await workers.doubt(store.database, both)
    assert await workers.lose(store.database, both, LEASE) == Losses([], both)
    # The second one is heard by some node.
    await renew(store, store.second_worker)
    assert await workers.lose(store.database, both, ZERO) == Losses([store.worker], [store.worker])
    assert await workers.dead(store.database, both, as_of=NO_LEASE) == [store.worker]
    assert await left(store, store.worker) < ZERO
    assert await left(store, store.second_worker) > ZERO


async def test_a_lost_worker_that_is_heard_again_lives(store: Bench) -> None:
    await workers.doubt(store.database, [store.worker])
    await workers.lose(store.database, [store.worker], ZERO)
    # What was heard before the loss says nothing.
    await renew(store, store.worker, age=timedelta(seconds=3))
    assert await streams(store, store.worker) == (False, True)
    await renew(store, store.worker)
    assert await streams(store, store.worker) == (False, False)
    assert await workers.dead(store.database, [store.worker], as_of=ANY_LEASE) == []


async def test_a_worker_that_comes_back_is_in_no_doubt(store: Bench) -> None:
    worker = await register(store, "w", 1)
    await workers.doubt(store.database, [worker])
    await workers.lose(store.database, [worker], ZERO)
    assert await streams(store, worker) == (True, True)
    assert await register(store, "w", 1) == worker
    assert await streams(store, worker) == (False, False)


async def test_ended_workers_are_not_doubted(store: Bench) -> None:
    await workers.end(store.database, [store.worker], "goodbye")
    await workers.doubt(store.database, [store.worker])
    assert await workers.lose(store.database, [store.worker], ZERO) == Losses([], [])


async def test_losing_a_worker_whose_lease_is_over_does_not_lengthen_it(store: Bench) -> None:
    silent = await store.worker_named("silent", timedelta(hours=-1))
    before = await lease_of(store, silent)
    await workers.doubt(store.database, [silent])
    await workers.lose(store.database, [silent], ZERO)
    assert await lease_of(store, silent) == before


async def test_keep_renews_by_name(store: Bench) -> None:
    silent = await register(store, "w", 7, ZERO)
    assert await workers.keep(store.database, NAMESPACE, "w", 7, LEASE)
    assert await left(store, silent) > ZERO
    # The process lives; whether it has a stream is another question, asked anew.
    assert await streams(store, silent) == (False, False)
    await workers.doubt(store.database, [silent])
    await store.sql(
        "UPDATE workers SET doubted_at = doubted_at - interval '1 h', lost_at = now() WHERE id = %s", silent
    )
    assert await workers.keep(store.database, NAMESPACE, "w", 7, LEASE)
    assert await streams(store, silent) == (True, False)
    assert await workers.lose(store.database, [silent], timedelta(minutes=1)) == Losses([], [silent])
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
