"""The example clients on three nodes with TLS and tokens, of which one is killed while they submit, wait and work."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
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
from tests.support.access import bearer, granted
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

_JOBS = 8
_PATIENCE_S = 90.0
_CALL_S = 10.0


class Operator:
    """Calls a node as one who may do everything."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._jobs = JobServiceStub(channel)
        self._admin = AdminServiceStub(channel)
        self._metadata = bearer(token)

    async def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        request = CreateNamespaceRequest(namespace=name)
        await self._admin.CreateNamespace(request, timeout=_CALL_S, metadata=self._metadata)

    async def job(self, namespace: str, job_id: int) -> Job:
        """Return a job."""
        request = GetJobRequest(namespace=namespace, id=job_id)
        return await self._jobs.GetJob(request, timeout=_CALL_S, metadata=self._metadata)

    async def completed(self, namespace: str, handler: str) -> Sequence[Job]:
        """Return the completed jobs of a handler."""
        request = ListJobsRequest(namespace=namespace, handler=handler, states=[Job.COMPLETED])
        return (await self._jobs.ListJobs(request, timeout=_CALL_S, metadata=self._metadata)).jobs


class Clients:
    """The programs of one language, in a namespace of their own."""

    def __init__(self, language: Language, cluster: Cluster, folder: Path) -> None:
        assert cluster.security is not None
        self.language = language
        self._folder = folder
        self._variables = {
            "SHARDWHEEL_ADDRESS": cluster.address,
            "SHARDWHEEL_CA": cluster.security.worker_variables["SHARDWHEEL_CA"],
            "SHARDWHEEL_NAMESPACE": language.name,
            "SHARDWHEEL_WORKER": f"{language.name}-worker",
        }
        self.worker = self.program("worker", language.worker)

    async def begin(self, dsn: str, operator: Operator) -> None:
        """Start the worker in a namespace of its own, with a token for that, and wait until it serves all nodes."""
        name = self.language.name
        await operator.create_namespace(name)
        self._variables["SHARDWHEEL_TOKEN"] = await granted(dsn, f"{name}:submit,work,read", holder=name)
        await self.worker.start()
        await self.worker.printed("connected to", times=3)

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
    async with Cluster(tmp_path, postgres, database, nodes=3, workers=0, secure=True) as three:
        yield three
        print(three.tails())


@pytest.mark.timeout(400)
@pytest.mark.skipif(all(reason_to_skip(one) for one in LANGUAGES), reason="no language runs here")
async def test_clients_live_through_the_end_of_a_node(
    built: Mapping[str, Language], cluster: Cluster, database: str, tmp_path: Path
) -> None:
    assert cluster.security is not None
    clients = [Clients(language, cluster, tmp_path) for language in built.values()]
    node = cluster.nodes[0]
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(cluster.security.channel(cluster.addresses[1]))
        operator = Operator(channel, await granted(database, "*:admin", holder="operator"))
        for one in clients:
            stack.push_async_callback(one.worker.process.kill)
        await asyncio.gather(*(one.begin(database, operator) for one in clients))
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
            await _check_jobs(operator, one.language.name, submit)


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


async def _check_jobs(operator: Operator, namespace: str, submit: Program) -> None:
    """Each job has completed with its first try, and the schedule has fired."""
    ids = [int(line.split()[0]) for line in submit.lines if "COMPLETED" in line]
    assert len(set(ids)) == _JOBS, submit.lines
    for job_id in ids:
        job = await operator.job(namespace, job_id)
        assert (job.state, job.attempt, list(job.attempts)) == (Job.COMPLETED, 1, []), f"{namespace}: {job}"
    completed = await operator.completed(namespace, "example.echo")
    assert any(job.schedule_id for job in completed), f"{namespace}: the schedule has completed no job"
