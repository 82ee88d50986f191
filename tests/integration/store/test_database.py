"""Statements that fail: what surely had no effect, what may have had one, and that connections come back."""

import asyncio
import os
import signal
import time
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.store.database import Connection, Database, classify, single_connection
from server.store.engine_store import PostgresEngineStore
from server.store.errors import Locked, NotApplied, Refused, Unavailable, UnknownOutcome
from tests.integration.store.bench import Bench, bench
from tests.support.postgres import PostgresServer
from tests.support.postgres_sessions import list_sessions, terminate_sessions
from tests.support.stopping import stop_process
from tests.support.waiting import eventually
from tests.support.zookeeper import free_ports


async def busy(store: Bench, application: str) -> list[int]:
    """Return the back ends of a pool that run a statement which waits."""
    rows = await store.sql(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s "
        "AND wait_event_type IN ('Lock', 'Timeout')",
        application,
    )
    return [pid for (pid,) in rows]


async def test_statement_of_a_killed_back_end_has_an_unknown_outcome(store: Bench) -> None:
    waiting = asyncio.create_task(store.database.run("SELECT pg_sleep(5)", api=True))
    await eventually(lambda: busy(store, "shardwheel-api"), what="the statement runs")
    await store.sql("SELECT pg_terminate_backend(%s)", *(await busy(store, "shardwheel-api")))
    with pytest.raises(UnknownOutcome):
        await waiting


async def test_statement_that_is_too_slow_has_an_unknown_outcome(store: Bench) -> None:
    with pytest.raises(UnknownOutcome, match=r"no answer from the database within 0\.2 s"):
        await store.database.run("SELECT pg_sleep(5)", timeout=0.2)


async def test_statement_whose_back_end_hangs_ends_soon_after_its_deadline(database: str) -> None:
    """It does not even hear that it is cancelled."""
    one = Database(database, hot_connections=1, api_connections=1)
    await one.open()
    [(pid,)] = await one.run("SELECT pg_backend_pid()")
    stop_process(pid)
    try:
        before = time.monotonic()
        with pytest.raises(UnknownOutcome, match=r"no answer from the database within 0\.2 s"):
            await one.run("SELECT 1", timeout=0.2)
        assert time.monotonic() - before < 3.0
        assert await one.run("SELECT 1") == [(1,)]
    finally:
        os.kill(pid, signal.SIGCONT)
        await one.close()


async def test_statement_that_gets_no_connection_was_surely_not_sent(database: str) -> None:
    async with bench(database, api_connections=2) as store:
        holders = [asyncio.create_task(store.database.run("SELECT pg_sleep(1)", api=True)) for _ in range(2)]
        await eventually(lambda: busy(store, "shardwheel-api"), what="the pool is exhausted")
        before = time.monotonic()
        with pytest.raises(Unavailable, match="no connection to the database within"):
            await store.database.run("SELECT 1", timeout=0.2, api=True)
        assert time.monotonic() - before < 0.9
        # The other pool is not touched by a flood of requests.
        assert await store.database.run("SELECT 1") == [(1,)]
        await asyncio.gather(*holders)
        assert await store.database.run("SELECT 1", api=True) == [(1,)]


async def test_pool_recovers_from_back_ends_that_were_killed(store: Bench) -> None:
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'shardwheel-%%' AND pid <> pg_backend_pid()"
    )
    [(killed,)] = await store.sql(kill)
    assert killed >= 5

    async def works(*, api: bool) -> bool:
        try:
            return await store.database.run("SELECT 1", api=api) == [(1,)]
        except (NotApplied, UnknownOutcome):
            return False

    for _ in range(20):
        await eventually(lambda: works(api=True), what="the pool works again")
        await eventually(lambda: works(api=False), what="the pool works again")
    # Once it works, it works on every connection.
    assert await asyncio.gather(*(works(api=n % 2 == 0) for n in range(20))) == [True] * 20


async def test_no_statement_is_lost_on_a_connection_that_has_ended(store: Bench) -> None:
    """A node that asks seldom would else need as many failures as it has connections to be rid of them."""
    await asyncio.to_thread(terminate_sessions, store.dsn, "shardwheel-")
    await eventually(lambda: not list_sessions(store.dsn, "shardwheel-"), what="the end of the back ends")
    for _ in range(20):
        for api in (False, True):
            assert await store.database.run("SELECT 1", api=api) == [(1,)]


async def test_pool_recovers_from_a_restart_of_the_server(postgres: PostgresServer, database: str) -> None:
    async with bench(database) as store:
        engine_store = PostgresEngineStore(store.database, node="n", incarnation=1)
        [job_id] = await store.submit()
        await asyncio.to_thread(postgres.kill9)
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await engine_store.sweep(0)
        await asyncio.to_thread(postgres.start)

        async def works() -> bool:
            try:
                return [one.job_id for one in await engine_store.sweep(0)] == [job_id]
            except (StoreUnavailable, OutcomeUnknown):
                return False

        await eventually(works, timeout_s=20, what="the store works again")


async def test_deadlock_is_tried_again(store: Bench) -> None:
    a, b = await store.submit(2)
    lock = "SELECT FROM jobs_0000 WHERE id = %s FOR UPDATE"
    started = [asyncio.Event(), asyncio.Event()]
    tries = 0

    def crossing(first: int, second: int, number: int) -> Any:
        async def work(connection: Connection) -> int:
            nonlocal tries
            tries += 1
            await connection.execute(lock, (first,))
            started[number].set()
            await started[1 - number].wait()
            await connection.execute(lock, (second,))
            return number

        return work

    done = await asyncio.gather(
        store.database.transact(crossing(a, b, 0)), store.database.transact(crossing(b, a, 1), api=False)
    )
    assert list(done) == [0, 1]
    assert tries == 3


async def test_deadlock_that_comes_again_and_again_is_given_up(store: Bench) -> None:
    tries = 0

    async def work(connection: Connection) -> None:
        nonlocal tries
        tries += 1
        await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")

    with pytest.raises(Refused) as caught:
        await store.database.transact(work)
    assert (caught.value.sqlstate, tries) == ("40P01", 4)


async def test_transaction_that_fails_leaves_nothing(store: Bench) -> None:
    async def work(connection: Connection) -> None:
        await connection.execute("INSERT INTO namespaces (name) VALUES ('half')")
        raise Refused("00000", "enough")

    with pytest.raises(Refused, match="enough"):
        await store.database.transact(work)
    assert await store.sql("SELECT id FROM namespaces WHERE name = 'half'") == []


async def test_refusal_names_the_state_and_one_line(store: Bench) -> None:
    with pytest.raises(Refused, match=r"division by zero \(SQLSTATE 22012\)") as caught:
        await store.sql("SELECT 1 / 0")
    assert caught.value.sqlstate == "22012"
    assert "\n" not in str(caught.value)


async def test_fetch_names_the_columns(store: Bench) -> None:
    [row] = await store.database.fetch("SELECT 1 AS one, '{}'::jsonb AS document")
    assert (row.one, row.document) == (1, b"{}")


async def test_database_that_does_not_answer_is_unavailable(postgres: PostgresServer) -> None:
    absent = Database(postgres.dsn("there_is_none"), hot_connections=2, api_connections=2)
    with pytest.raises(Unavailable, match=r"did not answer within 0\.3 s"):
        await absent.open(timeout=0.3)
    await absent.close()
    with pytest.raises(Unavailable, match="cannot connect"):
        async with single_connection(postgres.dsn("there_is_none")):
            pass


@pytest.mark.parametrize(
    ("error", "sent", "kind"),
    [
        (errors.AdminShutdown("x"), True, UnknownOutcome),
        (errors.AdminShutdown("x"), False, Unavailable),
        (errors.CrashShutdown("x"), True, UnknownOutcome),
        (errors.CannotConnectNow("x"), False, Unavailable),
        (errors.TooManyConnections("x"), True, Unavailable),
        (errors.DiskFull("x"), True, Unavailable),
        (errors.LockNotAvailable("x"), True, Locked),
        (errors.QueryCanceled("x"), True, Unavailable),
        (errors.ReadOnlySqlTransaction("x"), True, Unavailable),
        (errors.ConnectionFailure("x"), True, UnknownOutcome),
        (errors.ProtocolViolation("server conn crashed?"), True, UnknownOutcome),
        (errors.ConnectionFailure("x"), False, Unavailable),
        (errors.UniqueViolation("x"), True, Refused),
        (errors.DeadlockDetected("x"), True, Refused),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True, UnknownOutcome),
        (psycopg.OperationalError("connection refused"), False, Unavailable),
        (psycopg.ProgrammingError("placeholders"), True, Refused),
    ],
)
def test_errors_fall_into_three_classes(error: psycopg.Error, sent: bool, kind: type[Exception]) -> None:
    assert type(classify(error, sent=sent)) is kind


async def test_opening_can_be_tried_again(database: str) -> None:
    """As often as it takes: nobody listens at first."""
    parts = conninfo_to_dict(database)
    [port] = free_ports(1)
    store = Database(make_conninfo(database, port=port), hot_connections=2, api_connections=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="did not answer within"):
            await store.open(timeout=0.3)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(str(parts["host"]), int(str(parts["port"])))
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))

    server = await asyncio.start_server(lead, "127.0.0.1", port)
    try:
        await store.open(timeout=10.0)
        assert await store.run("SELECT 1") == [(1,)]
    finally:
        await store.close()
        server.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
