"""A node that follows a script, and workers that are stopped after the test."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.integration.worker_sdk import program
from tests.support.scripted_server import ScriptedServer, ScriptedSession
from worker_sdk import Worker

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def node() -> AsyncIterator[ScriptedServer]:
    """A node with heartbeats every 0.2 s and a lease of 1 s."""
    async with ScriptedServer() as server:
        yield server


class Workers:
    """Starts workers, and stops them at the end of the test, even if it failed."""

    def __init__(self) -> None:
        self._started: list[Worker] = []

    async def start(self, worker: Worker) -> Worker:
        """Start a worker without blocking the test's event loop, in which the nodes run."""
        self._started.append(worker)
        await asyncio.to_thread(worker.start)
        return worker

    async def connect(self, worker: Worker, node: ScriptedServer) -> ScriptedSession:
        """Start a worker and return its first session to a node."""
        await self.start(worker)
        return await node.next_session()

    async def stop_all(self) -> None:
        """Stop them, giving nothing time to finish."""
        for worker in self._started:
            await asyncio.to_thread(worker.stop, 0.0)


@pytest.fixture
async def workers(node: ScriptedServer) -> AsyncIterator[Workers]:
    """Workers of this test. They are stopped before the node is."""
    started = Workers()
    try:
        yield started
    finally:
        await started.stop_all()


class WorkerProcess:
    """Runs the worker of `program` with `python -m worker_sdk`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        """What it has printed."""

    async def start(self, node: ScriptedServer, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start it, connected to a node, under the name "process"."""
        command = [sys.executable, "-m", "worker_sdk", f"{program.__name__}:worker"]
        self._process = await asyncio.to_thread(
            subprocess.Popen,
            [*command, "--address", node.address, "--name", "process", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto" / "gen")]), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout])
        self._reader.start()
        return self._process

    async def wait(self, timeout_s: float = 10.0) -> int:
        """Return its exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, timeout_s)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.lines.append(line.rstrip())


@pytest.fixture
def worker_process() -> Iterator[WorkerProcess]:
    """A worker in a process of its own, killed at the end of the test."""
    process = WorkerProcess()
    try:
        yield process
    finally:
        process.end()
        print("\n".join(process.lines))
