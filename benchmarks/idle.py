"""Time from submit to the start of the handler on an idle system (scenario `idle`).

A node and a worker run as processes of their own; this process submits one job at a time over gRPC and takes the time
at which the handler starts from the worker's log, all on one machine's clock.
"""

import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench_database import fresh_database
from benchmarks.report import Report
from worker_sdk import AsyncClient

WARM_UP = 50


async def run(*, quick: bool) -> Report:
    """Measure."""
    runs = 200 if quick else 1000
    async with fresh_database() as (dsn, _):
        with tempfile.TemporaryDirectory(prefix="shardwheel-idle-") as folder:
            address = _free_address()
            node = await _start(["-m", "server.cli", "serve", "--listen", address, "--data-dir", folder], dsn)
            worker = await _start(
                ["-m", "worker_sdk", "benchmarks.idle_worker:worker", "--address", address],
                dsn,
                SHARDWHEEL_BENCH_LOG=str(Path(folder) / "starts.log"),
            )
            try:
                sent = await _submit(address, runs)
            finally:
                for process in (worker, node):
                    process.terminate()
                    await process.wait()
            started = _lateness(sent, Path(folder) / "starts.log")
    started.sort()
    return Report(
        scenario="idle",
        unit="ms from submit to handler start",
        values={
            "p50": statistics.median(started),
            "p99": started[int(len(started) * 0.99)],
            "max": started[-1],
        },
        runs=runs,
    )


async def _start(arguments: list[str], dsn: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, "SHARDWHEEL_DATABASE": dsn, "SHARDWHEEL_HTTP_LISTEN": "off", **environment},
    )


async def _submit(address: str, runs: int) -> dict[int, float]:
    """Submit jobs one by one; return when each was sent."""
    async with AsyncClient(address, timeout=30) as client:
        # The client tries again until the node listens; the worker has connected when the first job is done.
        first = await client.submit("bench.idle", {"number": 0})
        await client.wait(first.job_id, timeout=30)
        sent: dict[int, float] = {}
        for number in range(runs + WARM_UP):
            begun = time.time()
            job = await client.submit("bench.idle", {"number": number})
            sent[job.job_id] = begun
            await client.wait(job.job_id)
            await asyncio.sleep(0.01)
    return sent


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _lateness(sent: dict[int, float], log: Path) -> list[float]:
    """Return the milliseconds from submit to start, without the warm-up."""
    started: dict[int, float] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        started.setdefault(entry["job_id"], entry["at"])
    return [(started[job] - begun) * 1000 for job, begun in list(sent.items())[WARM_UP:]]
