"""`Context.complete_in`: a handler's own effect and its job's completion are committed together, or not at all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from server.app import Node
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, NewJob, RetryPolicy

REPOSITORY = Path(__file__).parents[2]
AT_ONCE = RetryPolicy(max_attempts=100, initial_delay=timedelta(0), max_delay=timedelta(0))


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        await node.database.run(
            "CREATE TABLE public.effects (number integer NOT NULL, job_id bigint NOT NULL, claim bigint NOT NULL)",
            api=True,
        )
        yield node


@contextmanager
def effect_worker(node: Node, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; killed at the end."""
    command = [sys.executable, "-m", "worker_sdk", "tests.support.effect_worker:worker", "--address", node.address]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "EFFECT_DATABASE": node.config.database, "PYTHONPATH": f"{REPOSITORY}:proto/gen"},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("handler", ["effect", "effect.async"])
async def test_every_effect_happens_exactly_once_whatever_is_killed(node: Node, tmp_path: Path, handler: str) -> None:
    jobs = 500
    async with AsyncClient(node.address) as client:
        await client.submit_many(
            [NewJob(handler=handler, payload={"number": number}, retry=AT_ONCE) for number in range(jobs)]
        )
        kills = 0
        while await _done(node) < jobs:
            with effect_worker(node, tmp_path / "worker.log") as process:
                before = await _done(node)

                async def progressed(before: int = before) -> bool:
                    return await _done(node) >= min(before + 90, jobs)

                await eventually(progressed, timeout_s=30, what="some progress of the worker")
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
    assert kills >= 4
    rows = await node.database.fetch("SELECT number, count(*) FROM public.effects GROUP BY number ORDER BY number")
    assert [(row[0], row[1]) for row in rows] == [(number, 1) for number in range(jobs)]
    rows = await node.database.fetch(
        "SELECT count(*) AS kept, count(DISTINCT id) AS jobs FROM job_history WHERE state = 3"
    )
    assert tuple(rows[0]) == (jobs, jobs)


async def test_a_transaction_that_was_not_committed_is_a_failed_try(node: Node, tmp_path: Path) -> None:
    async with AsyncClient(node.address) as client:
        started = time.monotonic()
        job = await client.submit("effect.rolled_back", {"number": 1}, retry=AT_ONCE)
        with effect_worker(node, tmp_path / "worker.log"):
            done = await client.wait(job.job_id, timeout=timedelta(seconds=20))
        assert time.monotonic() - started < 20
        assert (done.state.value, done.attempt) == ("completed", 2)
        assert [one.error.type for one in (await client.get(job.job_id)).attempts if one.error] == ["uncommitted"]


async def _done(node: Node) -> int:
    rows = await node.database.fetch("SELECT count(*) FROM public.effects")
    return int(rows[0][0])
