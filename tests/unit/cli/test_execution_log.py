"""The demo's execution log: lines are on the disk when a handler is told so."""

import asyncio
import os
from pathlib import Path

import pytest

from server.demo.execution_log import COMPLETED, End, ExecutionLog, Start, parse_line

START = Start(job=1, claim=2, attempt=3, worker="w", claimed_at=4.5, started_at=5.5)
END = End(job=1, claim=2, worker="w", ended_at=6.5, outcome=COMPLETED)


async def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path / "log")
    log.write(START)
    log.write(END)
    await asyncio.wait_for(log.durable(), 5)
    assert [parse_line(line) for line in (tmp_path / "log").read_bytes().splitlines()] == [START, END]


async def test_an_fsync_that_began_after_the_line_releases_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    fsync = os.fsync

    def spied(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spied)
    path = tmp_path / "log"
    log = ExecutionLog(path)

    async def execute() -> None:
        log.write(START)
        written = path.stat().st_size
        await log.durable()
        assert max(sizes) >= written

    await asyncio.wait_for(asyncio.gather(*(execute() for _ in range(200))), 5)
    # Many share one.
    assert len(sizes) < 50


async def test_a_writer_that_was_stopped_keeps_nobody_waiting(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path / "log")
    stopped = asyncio.create_task(log.durable())
    others = [asyncio.create_task(log.durable()) for _ in range(3)]
    await asyncio.sleep(0)
    stopped.cancel()
    await asyncio.wait_for(asyncio.gather(*others), 5)


async def test_a_second_worker_appends(tmp_path: Path) -> None:
    for _ in range(2):
        ExecutionLog(tmp_path / "log").write(START)
    assert len((tmp_path / "log").read_bytes().splitlines()) == 2
