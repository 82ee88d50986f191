"""What only the coordinator on PostgreSQL promises: deadlines, the database's clock, generations."""

import asyncio
import os
import signal
import time
from datetime import timedelta

import psycopg
import pytest

from shard_manager.coordinator import MAX_SHARDS, Member, MemberState, Plan
from shard_manager.errors import (
    CoordinatorFailed,
    CoordinatorUnavailable,
    InvalidSetting,
    NodeNameTaken,
    PlanCorrupt,
    SessionLost,
)
from shard_manager.postgres import PostgresCoordinator, schema_sql
from tests.contract.coordinator.benches import PostgresBench
from tests.support.stopping import stop_process
from tests.support.waiting import eventually

TTL = timedelta(seconds=10)
A = Member(node="a", incarnation=1)
B = Member(node="b", incarnation=2)
IMPATIENT = timedelta(milliseconds=300)


async def joined(bench: PostgresBench, member: Member) -> PostgresCoordinator:
    coordinator = bench.coordinator()
    await coordinator.join(member, ttl=TTL)
    return coordinator


# The schema.


def test_the_schema_is_plain_ddl_without_transaction_control() -> None:
    words = schema_sql().upper().split()
    assert not {"BEGIN;", "COMMIT;", "ROLLBACK;", "CONCURRENTLY"} & set(words)
    assert "." not in "".join(line for line in schema_sql().splitlines() if line.startswith("CREATE"))


async def test_the_tables_accept_exactly_the_states_and_shards_of_the_code(postgres_bench: PostgresBench) -> None:
    for state in MemberState:
        await joined(postgres_bench, Member(node=state.value, incarnation=1, state=state))
    with pytest.raises(psycopg.errors.CheckViolation):
        await postgres_bench.run("UPDATE coord_sessions SET state = 'other'")
    up = postgres_bench.coordinator()
    await up.join(A, ttl=TTL)
    assert len(await up.acquire([0, MAX_SHARDS - 1])) == 2
    with pytest.raises(CoordinatorFailed, match="23514"):
        await up.acquire([MAX_SHARDS])


async def test_a_missing_schema_is_told_as_such(empty_database: str) -> None:
    coordinator = PostgresCoordinator(empty_database)
    with pytest.raises(CoordinatorFailed, match="coord_plans") as caught:
        await coordinator.join(A, ttl=TTL)
    assert caught.value.operation == "join"
    await coordinator.close()


async def test_the_tables_may_live_in_any_schema(empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA elsewhere")
        connection.execute("SET search_path = elsewhere")
        connection.execute(schema_sql().encode())
    coordinator = PostgresCoordinator(f"{empty_database}?options=-csearch_path%3Delsewhere")
    await coordinator.join(A, ttl=TTL)
    assert len(await coordinator.acquire([1])) == 1
    await coordinator.close()


async def test_a_plan_that_cannot_be_read_is_told_as_such(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    await postgres_bench.run("UPDATE coord_plans SET version = 1, body = 'gibberish'")
    with pytest.raises(PlanCorrupt, match="not JSON"):
        await a.view()


# Deadlines and broken connections.


def test_a_deadline_must_be_positive() -> None:
    with pytest.raises(InvalidSetting, match="deadline"):
        PostgresCoordinator("", deadline=timedelta(0))


async def test_a_call_that_waits_for_a_lock_ends_at_its_deadline_and_the_next_one_works(
    postgres_bench: PostgresBench,
) -> None:
    await joined(postgres_bench, B)
    coordinator = PostgresCoordinator(postgres_bench.dsn, deadline=IMPATIENT)
    await coordinator.join(A, ttl=TTL)
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as blocker:
        await blocker.execute("LOCK TABLE coord_leases, coord_plans IN ACCESS EXCLUSIVE MODE")
        for call in (coordinator.acquire([0]), coordinator.view()):
            began = time.monotonic()
            with pytest.raises(CoordinatorUnavailable, match=r"no answer within 0\.3 s"):
                await call
            assert 0.2 < time.monotonic() - began < 5
        # The session has a connection of its own: other calls that hang do not delay its renewal.
        await coordinator.renew(A)
        await blocker.rollback()
    assert len(await coordinator.acquire([0])) == 1
    await coordinator.close()


async def test_a_frozen_server_process_holds_no_call_beyond_its_deadline(postgres_bench: PostgresBench) -> None:
    coordinator = PostgresCoordinator(postgres_bench.dsn, deadline=IMPATIENT)
    await coordinator.join(A, ttl=TTL)
    rows = await postgres_bench.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'shardwheel-session'"
    )
    (pid,) = rows[0]
    assert isinstance(pid, int)
    stop_process(pid)
    try:
        began = time.monotonic()
        with pytest.raises(CoordinatorUnavailable):
            await coordinator.renew(A)
        assert time.monotonic() - began < 5
        await coordinator.renew(A)
    finally:
        os.kill(pid, signal.SIGCONT)
    await coordinator.close()


async def test_a_connection_that_broke_is_opened_anew(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    await a.view()
    await postgres_bench.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for call in (a.renew, lambda _: a.view()):
        with pytest.raises(CoordinatorUnavailable):
            await call(A)
        await call(A)
    assert (await a.view()).members == {"a": A}


async def test_a_server_that_is_not_there_is_unavailable(empty_database: str) -> None:
    coordinator = PostgresCoordinator("host=127.0.0.1 port=1 dbname=none", deadline=timedelta(seconds=2))
    with pytest.raises(CoordinatorUnavailable) as caught:
        await coordinator.join(A, ttl=TTL)
    assert caught.value.operation == "join"
    with pytest.raises(SessionLost):
        await coordinator.view()
    await coordinator.close()


async def test_a_server_that_accepts_and_never_answers_holds_no_call_beyond_its_deadline() -> None:
    accepted: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    coordinator = PostgresCoordinator(f"host=127.0.0.1 port={port} dbname=none", deadline=IMPATIENT)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(CoordinatorUnavailable, match=r"no answer within 0\.3 s"):
            await coordinator.join(A, ttl=TTL)
        assert time.monotonic() - began < 5
    assert len(accepted) == 2
    await coordinator.close()
    for writer in accepted:
        writer.close()
    mute.close()
    await mute.wait_closed()


async def test_closing_ends_a_call_in_progress(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as blocker:
        await blocker.execute("LOCK TABLE coord_leases IN ACCESS EXCLUSIVE MODE")
        call = asyncio.create_task(a.acquire([0]))
        await eventually(lambda: waiting_for_a_lock(postgres_bench))
        async with asyncio.timeout(5):
            await a.close()
            with pytest.raises(CoordinatorUnavailable):
                await call
    with pytest.raises(CoordinatorUnavailable, match="closed"):
        await a.renew(A)


async def test_cancelling_a_call_does_not_wait_for_the_server(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as blocker:
        await blocker.execute("LOCK TABLE coord_leases IN ACCESS EXCLUSIVE MODE")
        call = asyncio.create_task(a.acquire([0]))
        await eventually(lambda: waiting_for_a_lock(postgres_bench))
        call.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert time.monotonic() - began < 3
    assert (await a.view()).members == {"a": A}


async def waiting_for_a_lock(bench: PostgresBench) -> bool:
    rows = await bench.run(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(rows)


# The database's clock.


async def test_a_reaper_passes_over_a_session_that_is_just_being_renewed(postgres_bench: PostgresBench) -> None:
    a, b = await joined(postgres_bench, A), await joined(postgres_bench, B)
    await a.acquire([0])
    await postgres_bench.expire("a")
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as late:
        await late.execute("UPDATE coord_sessions SET expires_at = clock_timestamp() + ttl WHERE node = 'a'")
        async with asyncio.timeout(2):
            view = await b.view()
        assert set(view.members) == {"b"}
        assert list(await b.acquire([0])) == []
        await late.commit()
    assert set((await b.view()).members) == {"a", "b"}
    assert list((await a.view()).held) == [0]


async def test_several_reapers_do_not_get_in_each_others_way(postgres_bench: PostgresBench) -> None:
    dead = [await joined(postgres_bench, Member(node=f"dead{number}", incarnation=1)) for number in range(8)]
    for number, coordinator in enumerate(dead):
        await coordinator.acquire(range(number * 8, number * 8 + 8))
    living = [await joined(postgres_bench, Member(node=f"alive{number}", incarnation=1)) for number in range(4)]
    await postgres_bench.run("UPDATE coord_sessions SET expires_at = clock_timestamp() WHERE node LIKE 'dead%'")
    views = await asyncio.gather(*(coordinator.view() for coordinator in living))
    assert all(set(view.members) == {f"alive{number}" for number in range(4)} for view in views)
    assert len(await living[0].acquire(range(64))) == 64


async def test_a_lock_on_a_dead_sessions_row_does_not_stop_its_successor_for_long(
    postgres_bench: PostgresBench,
) -> None:
    """A server process that hangs with the row locked: the join fails by its deadline, and is tried again."""
    await joined(postgres_bench, A)
    successor = PostgresCoordinator(postgres_bench.dsn, deadline=IMPATIENT)
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as stuck:
        await stuck.execute("SELECT FROM coord_sessions WHERE node = 'a' FOR UPDATE")
        with pytest.raises(CoordinatorUnavailable):
            await successor.join(Member(node="a", incarnation=9), ttl=TTL, replaces=[1])
        await stuck.rollback()
    await successor.join(Member(node="a", incarnation=9), ttl=TTL, replaces=[1])
    await successor.close()


async def test_a_clock_that_is_set_back_keeps_no_dead_node_alive_and_kills_no_living_one(
    postgres_bench: PostgresBench,
) -> None:
    short = timedelta(milliseconds=600)
    dead, living, witness = (postgres_bench.coordinator() for _ in range(3))
    living_member = Member(node="living", incarnation=1)
    await witness.join(B, ttl=TTL)
    await dead.join(A, ttl=short)
    await dead.acquire([0])
    await living.join(living_member, ttl=short)
    # As the sessions look after the database's clock was set back by an hour.
    await postgres_bench.run("UPDATE coord_sessions SET expires_at = expires_at + interval '1 hour'")
    began = time.monotonic()

    async def only_the_living() -> bool:
        await living.renew(living_member)
        await witness.renew(B)
        return set((await witness.view()).members) == {"b", "living"}

    await eventually(only_the_living)
    assert time.monotonic() - began >= short.total_seconds()
    assert len(await witness.acquire([0])) == 1


# Generations.


async def test_all_sessions_share_one_generation(postgres_bench: PostgresBench) -> None:
    coordinators = [postgres_bench.coordinator() for _ in range(4)]
    await asyncio.gather(
        *(
            coordinator.join(Member(node=f"n{number}", incarnation=1), ttl=TTL)
            for number, coordinator in enumerate(coordinators)
        )
    )
    leases = [lease for number, each in enumerate(coordinators) for lease in await each.acquire([number])]
    assert len({lease.generation for lease in leases}) == 1
    await coordinators[0].leave()
    await coordinators[0].join(Member(node="n0", incarnation=2), ttl=TTL)
    (again,) = await coordinators[0].acquire([0])
    assert again.generation == leases[0].generation


async def test_after_another_coordinator_was_in_charge_leases_outrank_its_own(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    (before,) = await a.acquire([0])
    await a.leave()
    ((foreign,),) = await postgres_bench.run("SELECT nextval('coord_generations')")
    assert isinstance(foreign, int)
    assert foreign > before.generation
    await a.join(A, ttl=TTL)
    (after,) = await a.acquire([0])
    assert after.generation > foreign
    b = await joined(postgres_bench, B)
    (other,) = await b.acquire([1])
    assert other.generation == after.generation


# Everyday cost.


async def test_waiting_for_a_shard_of_another_draws_no_tokens(postgres_bench: PostgresBench) -> None:
    a, b = await joined(postgres_bench, A), await joined(postgres_bench, B)
    await a.acquire(range(64))
    before = await postgres_bench.run("SELECT last_value FROM coord_tokens")
    for _ in range(20):
        assert list(await b.acquire(range(64))) == []
    assert await postgres_bench.run("SELECT last_value FROM coord_tokens") == before


async def test_an_unchanged_plan_is_not_read_again_unless_asked_for(postgres_bench: PostgresBench) -> None:
    a = await joined(postgres_bench, A)
    await a.write_plan(Plan(version=1, shards=8, owners={0: "a"}))
    first = (await a.view()).plan
    assert (await a.view()).plan is first
    await postgres_bench.run("UPDATE coord_plans SET body = replace(body, '\"a\"', '\"b\"')")
    assert (await a.view()).plan is first
    fresh = (await a.view(fresh=True)).plan
    assert fresh is not None
    assert fresh.owners == {0: "b"}


async def test_a_name_taken_is_refused_even_while_both_join_in_the_same_instant(postgres_bench: PostgresBench) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_bench.dsn) as first:
        await first.execute(
            "INSERT INTO coord_sessions (node, incarnation, state, weight, address, ttl, expires_at) "
            "VALUES ('a', 5, 'up', 1, '', '10 s', clock_timestamp() + interval '10 s')"
        )
        second = asyncio.create_task(joined(postgres_bench, A))
        await eventually(lambda: waiting_for_a_lock(postgres_bench))
        await first.commit()
        with pytest.raises(NodeNameTaken):
            await second
