"""`shardctl top` and `shardctl doctor` against a whole node, in processes of their own."""

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.app import Node
from tests.integration.shardctl.conftest import VARIABLES, Ran
from tests.support.nodes import running_node, submit
from tests.support.raw_worker import RawWorker
from tests.support.waiting import eventually

#: What is wrong with every database of these tests, on purpose.
OF_TESTS = {("settings", "fsync"), ("settings", "full_page_writes")}


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every shard."""
    async with running_node(database, tmp_path / "data") as node:
        yield node


def command(node: Node, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "shard_manager.shardctl", "--address", node.address, *arguments)


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}


async def run(node: Node, *arguments: str) -> Ran:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *command(node, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=variables(),
    )
    stdout, stderr = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode is not None
    return Ran(process.returncode, stdout.decode(), stderr.decode())


async def findings(node: Node) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    """The exit code, and what was found beside what is so in all tests."""
    ran = await run(node, "doctor", "-o", "json")
    assert [check for check in ran.json["checks"] if check["trouble"]] == []
    found = {(each["check"], each["subject"]): each for each in ran.json["findings"]}
    return ran.code, {key: each for key, each in found.items() if key not in OF_TESTS}


async def test_a_doctor_finds_what_was_broken_and_nothing_else(node: Node) -> None:
    code, found = await findings(node)
    assert (code, found) == (4, {})
    run_sql = node.database.run
    await submit(node, "nobody.runs.this")
    await run_sql("ALTER TABLE jobs_0003 SET (autovacuum_enabled = off)")
    await run_sql("CREATE TABLE attempts_20200101 (LIKE attempts)")
    await run_sql(
        "CREATE TABLE attempts_20200102 PARTITION OF attempts FOR VALUES FROM ('2020-01-02') TO ('2020-01-03')"
    )
    await run_sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'workers_live'::regclass")
    await run_sql("DROP INDEX jobs_due")
    code, found = await findings(node)
    assert code == 4
    plans = {key for key in found if key[0] == "plans"}
    assert {("plans", f"jobs_{number:04d}") for number in range(16)} <= plans
    assert {key: each["severity"] for key, each in found.items() if key not in plans} == {
        ("handlers", "default/nobody.runs.this"): "warning",
        ("autovacuum", "jobs_0003"): "warning",
        ("partitions", "attempts"): "warning",
        ("partitions", "attempts_20200101"): "warning",
        ("schema", "workers_live"): "critical",
    }
    shown = await run(node, "doctor")
    assert shown.code == 4
    assert "handlers: default/nobody.runs.this: no live worker runs it; 1 due jobs" in " ".join(shown.stdout.split())
    assert "REINDEX INDEX CONCURRENTLY shardwheel_store.workers_live" in " ".join(shown.stdout.split())
    assert shown.widest <= 80


async def test_top_shows_the_work_of_the_last_minute(node: Node) -> None:
    async with RawWorker(node.address, handlers={"greet": 5}) as worker:
        await submit(node, "greet", 8)
        worker.complete(await worker.next_jobs(5))
        await submit(node, "idle")

        # A step of five seconds has to be over.
        await eventually(
            lambda: any(step.counts.completed for step in node.activity_log.steps()),
            timeout_s=60,
            what="the first step of activity",
        )
        shown = await run(node, "top", "--once", "-o", "json")
        people = await run(node, "top", "--once")
    activity = shown.json["activity"]
    assert activity["completed_per_second"] > 0
    assert 0 < activity["lateness_p50"] <= activity["lateness_p99"] < 60
    assert activity["missing_nodes"] == []
    assert {each["handler"] for each in shown.json["handlers"]} == {"greet", "idle"}
    assert [each["worker"] for each in shown.json["workers"]] == ["raw"]
    assert "shards" not in shown.json["status"]
    assert people.code == 0
    assert people.widest <= 80
    for text in ("leader node-a", "all served", "last minute", "late by", "greet", "raw"):
        assert text in people.stdout, text


async def test_top_goes_on_until_it_is_interrupted(node: Node) -> None:
    process = await asyncio.create_subprocess_exec(
        *command(node, "top", "-o", "json", "--every", "1500ms"), stdout=asyncio.subprocess.PIPE, env=variables()
    )
    assert process.stdout is not None
    try:
        # A status is a second old at most.
        looks = [json.loads(await asyncio.wait_for(process.stdout.readline(), 60)) for _ in range(2)]
        assert looks[0]["status"]["now"] < looks[1]["status"]["now"]
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_top_draws_on_a_terminal_and_refuses_anything_else(node: Node) -> None:
    refused = await run(node, "top")
    assert (refused.code, "stdout is no terminal" in refused.stderr) == (2, True)
    assert (await run(node, "top", "--every", "1ms", "--once")).code == 2
    master, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *command(node, "top", "--every", "500ms"),
        stdout=terminal,
        env={**variables(), "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(terminal)
    drawn = b""
    try:
        while len(re.findall(rb"last minute", drawn)) < 2:
            drawn += await asyncio.wait_for(asyncio.to_thread(os.read, master, 1 << 16), 60)
        process.send_signal(signal.SIGINT)
        while chunk := await asyncio.to_thread(_rest, master):
            drawn += chunk
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        os.close(master)
    # The screen is left as it was found.
    assert drawn.index(b"\x1b[?1049h") < drawn.index(b"last minute") < drawn.index(b"\x1b[?1049l")


def _rest(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:
        # The other end is closed.
        return b""
