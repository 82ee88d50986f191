"""`Client.submit_in`: an application's data and its job are committed together, whatever is killed."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server.app import Node
from server.store.errors import Unavailable, UnknownOutcome
from tests.support.nodes import running_node
from tests.support.raw_worker import raw_worker
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, Client, ConfigurationError, RetryPolicy, Timeouts

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        await node.database.run("CREATE TABLE public.orders (number bigint PRIMARY KEY, job_id bigint)", api=True)
        yield node


async def test_every_option_arrives(node: Node) -> None:
    with psycopg.connect(node.config.database) as connection, Client(node.address) as client:
        got = client.submit_in(
            connection,
            "mail",
            {"to": "you"},
            name="n",
            priority=2,
            delay=90,
            retry=RetryPolicy(max_attempts=3, initial_delay=1.5, multiplier=3, max_delay=timedelta(hours=1),
                              non_retryable_error_types=("A", "B")),
            timeouts=Timeouts(start=timedelta(days=1), attempt=60, total=timedelta(days=2)),
            dedupe_key="d",
            dedupe_ttl=timedelta(hours=2),
            concurrency_key="c",
            concurrency_limit=4,
            labels={"team": "sales"},
        )  # fmt: skip
        assert (got.created, got.differs) == (True, False)
        again = client.submit_in(connection.cursor(), "mail", {"to": "me"}, dedupe_key="d", concurrency_key="c")
        assert (again.job_id, again.created, again.differs) == (got.job_id, False, True)
        connection.commit()
        job = await asyncio.to_thread(client.get, got.job_id)
    assert job.payload_json() == {"to": "you"}
    assert (job.name, job.priority, job.concurrency_key, job.concurrency_limit) == ("n", 2, "c", 4)
    assert (job.retry.max_attempts, job.retry.multiplier, job.retry.non_retryable_error_types) == (3, 3.0, ("A", "B"))
    assert (job.retry.initial_delay, job.timeouts.attempt) == (timedelta(seconds=1.5), timedelta(minutes=1))
    assert dict(job.labels) == {"team": "sales"}
    assert job.due_at is not None
    assert job.created_at is not None
    assert job.due_at - job.created_at == timedelta(seconds=90)


async def test_a_job_runs_after_the_commit_with_and_without_a_nudge(node: Node) -> None:
    connect = psycopg.AsyncConnection.connect(node.config.database)
    async with (
        raw_worker(node.address, {"mail": 2}) as worker,
        AsyncClient(node.address) as client,
        await connect as own,
    ):
        first = await client.submit_in(own, "mail", 1)
        await own.commit()
        [job] = await worker.next_jobs(1)
        assert (job.job_id, job.payload) == (first.job_id, b"1")
        second = await client.submit_in(own, "mail", 2)
        await own.commit()
        await client.nudge(second.job_id)
        [job] = await worker.next_jobs(1)
        assert job.job_id == second.job_id


async def test_a_nudge_makes_the_sweep_unnecessary(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(node.store, "sweep", nothing)
    connect = psycopg.AsyncConnection.connect(node.config.database)
    async with (
        raw_worker(node.address, {"mail": 2}) as worker,
        AsyncClient(node.address) as client,
        await connect as own,
    ):
        await client.nudge(4096)
        got = await client.submit_in(own, "mail")
        await client.nudge(got.job_id)
        await own.commit()
        await client.nudge(got.job_id)
        [job] = await worker.next_jobs(1)
        assert job.job_id == got.job_id


async def test_a_nudge_that_reaches_nobody_raises_nothing() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        await client.nudge(1)


async def test_a_connection_of_the_other_kind_is_refused(node: Node) -> None:
    connect = psycopg.AsyncConnection.connect(node.config.database)
    with Client(node.address) as client, psycopg.connect(node.config.database) as sync:
        async with AsyncClient(node.address) as asynchronous, await connect as own:
            with pytest.raises(ConfigurationError, match="use Client for it"):
                await asynchronous.submit_in(sync, "mail")
            with pytest.raises(ConfigurationError, match="use AsyncClient"):
                client.submit_in(own, "mail")


class Numbered:
    """Stands for asyncpg, which is no dependency: takes numbered parameters and returns a row."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetchrow(self, query: str, *args: object) -> Any:
        cursor = psycopg.AsyncRawCursor(self._connection)
        await cursor.execute(query.encode(), args)
        return await cursor.fetchone()


async def test_a_driver_with_numbered_parameters(node: Node) -> None:
    async with AsyncClient(node.address) as client:
        async with await psycopg.AsyncConnection.connect(node.config.database) as own:
            got = await client.submit_in(Numbered(own), "mail", {"a": 1}, labels={"x": "y"}, delay=5)
        job = await client.get(got.job_id)
    assert (job.payload_json(), dict(job.labels)) == ({"a": 1}, {"x": "y"})


@contextlib.contextmanager
def application(node: Node, log: Path, first: int) -> Any:
    """A process that commits order after order, each with its job; killed at the end."""
    command = [sys.executable, "-m", "tests.support.order_program", node.config.database, str(first)]
    with log.open("ab") as output:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'proto' / 'gen'}"}
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _fetch(node: Node, statement: str) -> list[Any]:
    """Return rows once PostgreSQL is there: after its recovery some connections are still broken."""
    rows: list[Any] = []

    async def fetched() -> bool:
        nonlocal rows
        try:
            rows = await node.database.fetch(statement)
        except (Unavailable, UnknownOutcome):
            return False
        return True

    await eventually(fetched, timeout_s=60, what="an answer from PostgreSQL")
    return rows


async def _orders(node: Node) -> int:
    return int((await _fetch(node, "SELECT count(*) FROM public.orders"))[0][0])


async def test_data_is_there_exactly_if_its_job_is_whatever_is_killed(node: Node, tmp_path: Path) -> None:
    """The application or its connection's process in PostgreSQL is killed, at random instants."""
    draw = random.Random(4)
    for turn in range(8):
        before = await _orders(node)
        with application(node, tmp_path / "log", turn * 1_000_000) as process:

            async def progressed(before: int = before) -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                return await _orders(node) >= before + 5

            await eventually(progressed, timeout_s=60, what="some orders")
            await asyncio.sleep(draw.uniform(0, 0.05))
            if turn % 2:
                os.kill(process.pid, signal.SIGKILL)
            else:
                await node.database.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'orders'"
                )
    [(orders, jobs, pairs)] = await node.database.fetch(
        "SELECT (SELECT count(*) FROM public.orders) AS orders, (SELECT count(*) FROM jobs) AS jobs, "
        "(SELECT count(*) FROM public.orders o JOIN jobs j "
        "ON j.id = o.job_id AND j.payload = o.number::text::bytea) AS pairs"
    )
    assert orders == jobs == pairs
    assert orders >= 40


async def test_a_postgres_that_is_killed_keeps_both_or_neither(node: Node, tmp_path: Path) -> None:
    """kill -9 of one server process makes PostgreSQL restart all of them and recover."""
    async with AsyncClient(node.address):
        for turn in range(2):
            before = await _orders(node)
            with application(node, tmp_path / "log", turn * 1_000_000):

                async def progressed(before: int = before) -> bool:
                    return await _orders(node) >= before + 5

                await eventually(progressed, timeout_s=60, what="some orders")
                rows = await _fetch(node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'orders'")
                for (pid,) in rows:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    statement = (
        "SELECT (SELECT count(*) FROM public.orders) AS orders, (SELECT count(*) FROM jobs) AS jobs, "
        "(SELECT count(*) FROM public.orders o JOIN jobs j ON j.id = o.job_id) AS pairs"
    )
    [(orders, jobs, pairs)] = await _fetch(node, statement)
    assert orders == jobs == pairs >= 10


@pytest.mark.soak
async def test_how_soon_a_job_starts(node: Node) -> None:
    """Prints the time from commit to start, with and without a nudge."""
    connect = psycopg.AsyncConnection.connect(node.config.database)
    async with (
        raw_worker(node.address, {"mail": 2}) as worker,
        AsyncClient(node.address) as client,
        await connect as own,
    ):
        for nudge in (False, True):
            took = []
            for _ in range(30):
                got = await client.submit_in(own, "mail")
                await own.commit()
                began = time.monotonic()
                if nudge:
                    await client.nudge(got.job_id)
                [job] = await worker.next_jobs(1)
                took.append(time.monotonic() - began)
                worker.complete([job])
            print(f"nudge={nudge}: median {sorted(took)[15] * 1000:.1f} ms, worst {max(took) * 1000:.1f} ms")
