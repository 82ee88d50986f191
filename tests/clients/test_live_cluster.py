"""The example clients on three nodes, of which one is killed while they submit, wait and work."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc.aio
import pytest

from shardwheel.v1.admin_service_pb2 import CreateNamespaceRequest
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import GetJobRequest, ListJobsRequest
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from tests.clients.languages import LANGUAGES, Command, Language, reason_to_skip
from tests.cluster.cluster import Cluster
from tests.conformance.worker_process import WorkerProcess
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

_JOBS = 8
_PATIENCE_S = 90.0


class Clients:
    """The programs of one language, in a namespace of their own."""

    def __init__(self, language: Language, cluster: Cluster, folder: Path) -> None:
        self.language = language
        self._folder = folder
        self._variables = {
            "SHARDWHEEL_ADDRESS": cluster.address,
            "SHARDWHEEL_NAMESPACE": language.name,
            "SHARDWHEEL_WORKER": f"{language.name}-worker",
        }
        self.worker = self.program("worker", language.worker)

    def program(self, name: str, command: Command) -> "Program":
        """Describe a program; its output is kept in a file of that name."""
        output = self._folder / f"{self.language.name}-{name}.out"
        return Program(WorkerProcess(command, output), output, self._variables)


class Program:
    """A process, and what it has printed."""

    def __init__(self, process: WorkerProcess, output: Path, variables: Mapping[str, str]) -> None:
        self.process = process
        self._output = output
        self._variables = variables

    async def start(self) -> None:
        """Start it."""
        await self.process.start(self._variables)

    @property
    def lines(self) -> list[str]:
        """What it has printed."""
        return self._output.read_text().splitlines() if self._output.exists() else []

    async def printed(self, text: str, times: int = 1) -> None:
        """Wait until it has printed a text so many times."""
        await eventually(
            lambda: sum(text in line for line in self.lines) >= times,
            timeout_s=_PATIENCE_S,
            what=f"{text!r} in {self._output.name}",
        )

    async def succeeds(self) -> None:
        """Wait for its end, which has to be a success."""
        code = await self.process.ended(_PATIENCE_S)
        assert code == 0, f"{self._output.name}: exit code {code}\n{self.process.output_tail()}"


@pytest.fixture
async def cluster(postgres: PostgresServer, database: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes without workers."""
    async with Cluster(tmp_path, postgres, database, nodes=3, workers=0) as three:
        yield three
        print(three.tails())


@pytest.mark.timeout(400)
@pytest.mark.skipif(all(reason_to_skip(one) for one in LANGUAGES), reason="no language runs here")
async def test_clients_live_through_the_end_of_a_node(
    built: Mapping[str, Language], cluster: Cluster, tmp_path: Path
) -> None:
    clients = [Clients(language, cluster, tmp_path) for language in built.values()]
    node = cluster.nodes[0]
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(cluster.addresses[1]))
        for one in clients:
            stack.push_async_callback(one.worker.process.kill)
        await asyncio.gather(*(_begin(one, channel) for one in clients))
        submits = [
            one.program("submit", one.language.program("submit", "example.sleep", "2", str(_JOBS))) for one in clients
        ]
        await asyncio.gather(*(_run_until(submit, "submitted", stack) for submit in submits))
        # The first address of every client and worker is this node's.
        node.kill()
        await asyncio.gather(*(submit.succeeds() for submit in submits))
        await asyncio.gather(*(_works_on(one, stack) for one in clients))
        node.start()
        for one in clients:
            await one.worker.printed(f"connected to {node.name}", times=2)
            one.worker.process.terminate()
        await asyncio.gather(*(one.worker.succeeds() for one in clients))
        for one, submit in zip(clients, submits, strict=True):
            await _check_jobs(channel, one.language.name, submit)


async def _begin(one: Clients, channel: grpc.aio.Channel) -> None:
    """Start the worker in its new namespace, and wait until it serves all nodes."""
    await AdminServiceStub(channel).CreateNamespace(CreateNamespaceRequest(namespace=one.language.name), timeout=10)
    await one.worker.start()
    await one.worker.printed("connected to", times=3)


async def _run_until(program: Program, text: str, stack: contextlib.AsyncExitStack) -> None:
    stack.push_async_callback(program.process.kill)
    await program.start()
    await program.printed(text)


async def _works_on(one: Clients, stack: contextlib.AsyncExitStack) -> None:
    """Submit and schedule on what is left of the cluster."""
    run = one.language.program
    echo = one.program("echo", run("submit", "example.echo", '"again"', "3"))
    schedule = one.program(
        "schedule", run("schedule", "tick", "example.echo", '"tick"', "* * * * * *", "Europe/Berlin")
    )
    for program in (echo, schedule):
        stack.push_async_callback(program.process.kill)
        await program.start()
    await echo.succeeds()
    assert sum(line.endswith('COMPLETED "again"') for line in echo.lines) == 3, echo.lines
    await schedule.succeeds()
    assert "tick CREATED" in schedule.lines, schedule.lines


async def _check_jobs(channel: grpc.aio.Channel, namespace: str, submit: Program) -> None:
    """Each job has completed with its first try, and the schedule has fired."""
    jobs = JobServiceStub(channel)
    ids = [int(line.split()[0]) for line in submit.lines if "COMPLETED" in line]
    assert len(set(ids)) == _JOBS, submit.lines
    for job_id in ids:
        job = await jobs.GetJob(GetJobRequest(namespace=namespace, id=job_id), timeout=10)
        assert (job.state, job.attempt, list(job.attempts)) == (Job.COMPLETED, 1, []), f"{namespace}: {job}"
    completed = await jobs.ListJobs(
        ListJobsRequest(namespace=namespace, handler="example.echo", states=[Job.COMPLETED]), timeout=10
    )
    assert any(job.schedule_id for job in completed.jobs), f"{namespace}: the schedule has completed no job"
