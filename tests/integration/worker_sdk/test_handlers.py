"""What handlers get and do, in a worker with a real session: progress, middleware, execution log, commits."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest

from shardwheel.v1 import worker_service_pb2
from tests.integration.worker_sdk.conftest import Workers
from tests.support.scripted_server import ScriptedServer, assignment
from tests.support.waiting import eventually
from worker_sdk import ConfigurationError, Context, Worker


async def test_progress_goes_with_heartbeats_and_ahead_of_the_result(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    reported, go_on, seen = threading.Event(), threading.Event(), list[object]()

    @worker.handler("copy")
    def copy(payload: object, ctx: Context) -> None:
        seen.extend([ctx.last_progress, ctx.last_progress_json()])
        ctx.progress({"row": 1})
        ctx.progress({"row": 2})
        reported.set()
        go_on.wait(5)
        ctx.progress(b"row 3")

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "copy", progress=b'{"row":0}'))
    await eventually(reported.is_set)
    assert seen == [b'{"row":0}', {"row": 0}]
    beat = await session.expect("heartbeat", lambda request: bool(request.heartbeat.progress))
    (progress,) = beat.heartbeat.progress
    assert (progress.attempt.job_id, progress.attempt.claim, progress.data) == (1, 1, b'{"row":2}')
    # What was sent may have been lost with the session, so it is sent again.
    await session.reset()
    again = await node.next_session()
    beat = await again.expect("heartbeat", lambda request: bool(request.heartbeat.progress))
    assert beat.heartbeat.progress[0].data == b'{"row":2}'
    go_on.set()
    await again.expect_results(1)
    kinds = [request.WhichOneof("message") for request in again.received]
    last_beat = again.received[kinds.index("results") - 1]
    assert [item.data for item in last_beat.heartbeat.progress] == [b"row 3"]


async def test_middleware_surrounds_every_execution(node: ScriptedServer, workers: Workers) -> None:
    events: list[str] = []

    @contextmanager
    def outer(ctx: Context) -> Iterator[None]:
        events.append(f"outer {ctx.handler}")
        yield
        events.append("outer left")

    @asynccontextmanager
    async def inner(ctx: Context) -> AsyncIterator[None]:
        events.append(f"inner {ctx.job_id}")
        yield
        events.append("inner left")

    worker = Worker(node.address, name="w", middleware=[outer], watchdog=0)
    worker.middleware.append(inner)

    @worker.handler("fine")
    async def fine(payload: object) -> None:
        events.append("fine")

    @worker.handler("sync")
    def sync(payload: object) -> None:
        events.append("never reached")

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "fine"))
    await session.expect_results(1)
    assert events == ["outer fine", "inner 1", "fine", "inner left", "outer left"]
    # An async context manager cannot surround a thread, and saying so is better than leaving it out.
    await session.send_jobs(assignment(2, "sync"))
    (result,) = await session.expect_results(1)
    assert result.failed.error.type == ConfigurationError.__name__


async def test_exceptions_pass_through_middleware(node: ScriptedServer, workers: Workers) -> None:
    @contextmanager
    def clearer(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise RuntimeError("made clearer") from error

    worker = Worker(node.address, name="w", middleware=[clearer], watchdog=0)

    @worker.handler("sync")
    def sync(payload: object) -> None:
        raise ValueError("cryptic")

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "sync"))
    (result,) = await session.expect_results(1)
    assert result.failed.error.type == "RuntimeError"
    assert result.failed.error.message.startswith("made clearer")


async def test_the_execution_log_has_every_start_and_end(
    node: ScriptedServer, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "executions.jsonl"
    monkeypatch.setenv("SHARDWHEEL_EXECUTION_LOG", str(path))
    worker = Worker(node.address, name="w-9", watchdog=0)

    @worker.handler("fine")
    async def fine(payload: object) -> None:
        return None

    @worker.handler("bad")
    def bad(payload: object) -> None:
        raise KeyError("x")

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "fine", claim=3, attempt=2), assignment(2, "bad"))
    await session.expect_results(2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_job = {job: [line for line in lines if line["job"] == job] for job in (1, 2)}
    start, end = by_job[1]
    assert (start["event"], start["claim"], start["attempt"], start["worker"]) == ("start", 3, 2, "w-9")
    assert (end["event"], end["outcome"], end["handler"]) == ("end", "returned", "fine")
    assert start["due_at"] <= start["at"] <= end["at"]
    assert by_job[2][1]["outcome"] == "KeyError"


@pytest.fixture
def job_table(empty_database: str) -> str:
    """A database with the table of an effect, and a stand-in for the function that completes an open attempt."""
    with psycopg.connect(empty_database) as connection:
        connection.execute(
            """
            CREATE SCHEMA shardwheel;
            CREATE TABLE open_attempts (job_id bigint, claim bigint);
            CREATE TABLE results (job_id bigint, result bytea, content_type text);
            CREATE TABLE effects (job_id bigint);
            CREATE FUNCTION shardwheel.complete_attempt(bigint, bigint, bytea, text) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
                DELETE FROM open_attempts WHERE job_id = $1 AND claim = $2;
                IF NOT FOUND THEN RAISE EXCEPTION 'attempt is no longer open'; END IF;
                INSERT INTO results VALUES ($1, $3, $4);
            END $$;
            INSERT INTO open_attempts VALUES (1, 7), (2, 7);
            """
        )
    return empty_database


async def test_an_effect_and_its_completion_commit_together_or_not_at_all(
    node: ScriptedServer, workers: Workers, job_table: str
) -> None:
    worker = Worker(node.address, name="w", watchdog=0)

    @worker.handler("sync")
    def sync(payload: object, ctx: Context) -> str:
        with psycopg.connect(job_table) as connection:
            connection.execute("INSERT INTO effects VALUES (%s)", (ctx.job_id,))
            ctx.complete_in(connection, {"paid": True})
        return "ignored"

    @worker.handler("async")
    async def asynchronous(payload: object, ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(job_table) as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", (ctx.job_id,))
            await ctx.complete_in(connection.cursor(), b"\x00\x01")

    session = await workers.connect(worker, node)
    await session.send_jobs(
        assignment(1, "sync", claim=7), assignment(2, "async", claim=7), assignment(3, "sync", claim=7),
        assignment(4, "async", claim=7),
    )  # fmt: skip
    results = {item.attempt.job_id: item for item in await session.expect_results(4)}
    assert [results[i].WhichOneof("outcome") for i in (1, 2, 3, 4)] == ["committed", "committed", "failed", "failed"]
    assert "no longer open" in results[3].failed.error.message
    with psycopg.connect(job_table) as connection:
        effects = connection.execute("SELECT job_id FROM effects ORDER BY 1").fetchall()
        stored = connection.execute("SELECT * FROM results ORDER BY 1").fetchall()
    assert effects == [(1,), (2,)]
    assert stored == [(1, b'{"paid":true}', "application/json"), (2, b"\x00\x01", "application/octet-stream")]


async def test_a_committed_attempt_stays_committed_when_it_is_cancelled_afterwards(
    node: ScriptedServer, workers: Workers
) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    committed = threading.Event()

    class Connection:
        def execute(self, query: str, params: object) -> None:
            assert "complete_attempt" in query

    @worker.handler("pay")
    def pay(payload: object, ctx: Context) -> None:
        ctx.complete_in(Connection())
        committed.set()
        ctx.cancelled.wait(5)

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "pay"))
    await eventually(committed.is_set)
    await session.send_cancel(1, 1, worker_service_pb2.CANCEL_REQUESTED)
    (result,) = await session.expect_results(1)
    assert result.HasField("committed")


async def test_handlers_of_one_worker_can_be_called_and_submitted_from_each_other(node: ScriptedServer) -> None:
    worker = Worker(node.address, name="w", watchdog=0)

    @worker.handler("a")
    async def a(payload: int) -> int:
        return payload + 1

    @worker.handler("b")
    def b(payload: int, ctx: Context | None = None) -> int:
        return payload * 2

    assert await a(1) == 2
    assert b(4) == 8
    assert asyncio.iscoroutinefunction(a.definition.function)
