"""Jobs a second from a backlog to stored ends, over sessions and through Kafka, side by side (scenario `kafka`).

PostgreSQL with durable commits, one node, two workers and one broker, each a process of its own on one machine. The
backlog is submitted while the handler is paused; the time runs from its resumption to the last stored end.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.bench_database import fresh_database
from benchmarks.kafka.apache import ApacheKafka
from benchmarks.kafka.names import HANDLER
from benchmarks.report import Report
from server.embedded.port import LOOPBACK, choose_port
from server.store.database import Database
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from worker_sdk import AsyncClient, NewJob
from worker_sdk.connection import Connection

WORKERS = 2
_END_S = 300.0


async def run(*, quick: bool) -> Report:
    """Measure."""
    jobs = 10_000 if quick else 50_000
    values = {}
    with (
        tempfile.TemporaryDirectory(prefix="shardwheel-kafka-") as folder,
        ApacheKafka(Path(folder) / "kafka") as kafka,
    ):
        for mode in (pb.DISPATCH_STREAM, pb.DISPATCH_KAFKA):
            async with fresh_database() as (dsn, database), _processes(dsn, folder, kafka.address) as address:
                name = pb.DispatchMode.Name(mode).removeprefix("DISPATCH_").lower()
                values[name] = await _measure(database, address, mode, jobs)
    return Report(scenario="kafka", unit="jobs/s", values=values, runs=jobs)


async def _measure(database: Database, address: str, mode: "pb.DispatchMode.ValueType", jobs: int) -> float:
    channel = Connection.resolve(address=address).open_channel(address)
    admin = AdminServiceStub(channel)
    async with AsyncClient(address, timeout=60) as client:
        # The first jobs see to it that topic, group and workers are there.
        await _dispatch(client, admin, mode)
        for job in await client.submit_many([NewJob(handler=HANDLER, payload=b"x") for _ in range(20)]):
            await client.wait(job.job_id, timeout=60)
        await admin.PauseHandler(pb.PauseHandlerRequest(handler=HANDLER), timeout=10)
        before = await _ended(database)
        await client.bulk_submit(NewJob(handler=HANDLER, payload=b"x" * 100) for _ in range(jobs))
        begun = time.monotonic()
        await admin.ResumeHandler(pb.ResumeHandlerRequest(handler=HANDLER), timeout=10)
        while await _ended(database) - before < jobs:
            if time.monotonic() - begun > _END_S:
                raise TimeoutError(f"{await _ended(database) - before} of {jobs} jobs have ended")
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - begun
    await channel.close()
    return jobs / seconds


async def _dispatch(client: AsyncClient, admin: AdminServiceStub, mode: "pb.DispatchMode.ValueType") -> None:
    first = await client.submit(HANDLER, b"x")
    await client.wait(first.job_id, timeout=60)
    await admin.SetHandlerDispatch(pb.SetHandlerDispatchRequest(handler=HANDLER, mode=mode), timeout=10)


async def _ended(database: Database) -> int:
    rows = await database.fetch("SELECT count(*) FROM job_history")
    return int(rows[0][0])


@asynccontextmanager
async def _processes(dsn: str, folder: str, kafka: str) -> AsyncIterator[str]:
    address = f"{LOOPBACK}:{choose_port(random.Random())}"
    settings = ["--listen", address, "--data-dir", folder, "--http-listen", "off", "--kafka", kafka]
    programs = [["-m", "server.cli", "serve", "--log-level", "warning", *settings]]
    program = ["-m", "worker_sdk", "benchmarks.kafka.worker_program:worker", "--log-level", "WARNING"]
    programs += [
        [*program, "--address", address, "--kafka", kafka, "--name", f"worker-{number}"] for number in range(WORKERS)
    ]
    started = [await _start(arguments, dsn) for arguments in programs]
    try:
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            await process.wait()


async def _start(arguments: Sequence[str], dsn: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "SHARDWHEEL_DATABASE": dsn}
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment)
