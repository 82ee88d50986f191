"""Three scripted nodes and the worker under test, as checks see them."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import grpc
import trustme

from shardwheel.v1.worker_service_pb2 import CANCEL_REQUESTED, Assignment, Hello, Report, Result
from tests.conformance.worker_process import WorkerProcess
from tests.support.scripted_server import Behaviour, ScriptedServer, ScriptedSession, assignment
from tests.support.waiting import eventually

ECHO: Final = "example.echo"
SLEEP: Final = "example.sleep"
FAIL: Final = "example.fail"
FOREVER: Final = b"600"

TOKEN: Final = "conformance-token"
GRACE_S: Final = 30.0
START_S: Final = 60.0
ANSWER_S: Final = 15.0
# Long enough that a busy machine does not make nodes look silent, short enough to wait for.
HEARTBEAT_S: Final = 0.2
LEASE_S: Final = 3.0
NODES: Final = 3


class Stage:
    """To be used in `async with`; nodes run then, the worker after `start`."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, secured: bool = False, grace_s: float = GRACE_S
    ) -> None:
        """Set the stage for a worker that `command` starts; `folder` is for its output.

        `secured`: nodes speak TLS. `grace_s`: how long the worker lets handlers run after SIGTERM.
        """
        self._variables = {"SHARDWHEEL_TOKEN": TOKEN, "SHARDWHEEL_GRACE": f"{grace_s:g}"}
        credentials = self._certify(folder) if secured else None
        self.nodes = [
            ScriptedServer(
                f"node-{number}", heartbeat_s=HEARTBEAT_S, lease_s=LEASE_S, timeout_s=ANSWER_S, credentials=credentials
            )
            for number in range(NODES)
        ]
        self.process = WorkerProcess(command, folder / "worker.out")
        self._job_numbers = itertools.count(1)
        self._requests = itertools.count(1)

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.process.kill()
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def start(self) -> None:
        """Start the worker, which knows the first node only."""
        await self.process.start(self._variables | {"SHARDWHEEL_ADDRESS": self.nodes[0].address})

    async def join(self) -> None:
        """Start the worker and bring it to all nodes."""
        await self.start()
        await eventually(lambda: self.nodes[0].sessions, timeout_s=START_S, what="hello at the first node")
        await self.settle()

    async def settle(self) -> None:
        """Set the nodes back to their usual ways; wait until the worker has a stream to each, and all its slots."""
        for node in self.nodes:
            node.behaviour = Behaviour()
        await self.tell_members(self.members)
        await eventually(lambda: all(self.open_sessions), timeout_s=ANSWER_S, what="a stream to every node")
        for handler in self.limits:
            await self.granted(handler, self.limits[handler])

    @property
    def members(self) -> Mapping[str, str]:
        """Addresses of the nodes, by name."""
        return {node.node: node.address for node in self.nodes}

    async def tell_members(self, members: Mapping[str, str]) -> None:
        """Have all nodes with a stream say who is there."""
        for session in self.open_sessions:
            if session is not None:
                await session.send_members(dict(members))

    @property
    def hellos(self) -> list[Hello]:
        """Everything that the worker has said of itself."""
        return [hello for node in self.nodes for hello in node.hellos]

    @property
    def limits(self) -> Mapping[str, int]:
        """How many attempts the worker says that it runs at a time, by handler."""
        return {one.handler: one.max_concurrency for one in self.hellos[0].handlers}

    @property
    def open_sessions(self) -> list[ScriptedSession | None]:
        """The open stream of each node."""
        latest = [node.sessions[-1] if node.sessions else None for node in self.nodes]
        return [one if one is not None and not one.ended.is_set() else None for one in latest]

    def session(self, number: int) -> ScriptedSession:
        """Return the open stream of a node."""
        session = self.open_sessions[number]
        assert session is not None, f"there is no stream to node-{number}"
        return session

    async def session_after(self, old: ScriptedSession, number: int) -> ScriptedSession:
        """Wait for another stream of a node, and return it."""
        await eventually(
            lambda: self.open_sessions[number] not in (None, old),
            timeout_s=ANSWER_S,
            what=f"a new stream to node-{number}",
        )
        return self.session(number)

    def credit(self, handler: str) -> list[int]:
        """Return what each node was granted, 0 for nodes without a stream."""
        return [0 if one is None else one.credit.get(handler, 0) for one in self.open_sessions]

    async def granted(self, handler: str, slots: int) -> None:
        """Wait until the nodes have so many slots together."""

        def reached() -> bool:
            return sum(self.credit(handler)) == slots

        await eventually(reached, timeout_s=ANSWER_S, what=f"{slots} slots of {handler} granted to all nodes together")

    def job(
        self, handler: str = ECHO, payload: bytes = b'"hello"', *, shard: int = 1, claim: int = 1, epoch: int = 1
    ) -> Assignment:
        """Return a new job."""
        return assignment(next(self._job_numbers) << 12 | shard, handler, claim=claim, epoch=epoch, payload=payload)

    def results(self, job: Assignment) -> list[tuple[ScriptedSession, Result]]:
        """Return the results of an attempt, with the streams that they came on; the same one again counts again."""
        return [
            (session, result)
            for node in self.nodes
            for session in node.sessions
            for request in session.of_kind("results")
            for result in request.results.results
            if (result.attempt.job_id, result.attempt.claim) == (job.job_id, job.claim)
        ]

    async def result(self, job: Assignment, outcome: str) -> Result:
        """Wait for the result of an attempt, and return it; it has to have that outcome."""
        await eventually(lambda: self.results(job), timeout_s=ANSWER_S, what=f"a result of the {job.handler} job")
        result = self.results(job)[0][1]
        came = result.WhichOneof("outcome")
        assert came == outcome, f"the result of the {job.handler} job is {came}, it has to be {outcome}"
        return result

    async def audit(self, number: int, *jobs: Assignment) -> Report:
        """Ask the worker about attempts on the stream of a node, and return the answer."""
        request = next(self._requests)
        await self.session(number).send_audit(request, *((job.job_id, job.claim) for job in jobs))
        return await self._report(number, request)

    async def owner_hello(self, number: int, epochs: Mapping[int, int]) -> Report:
        """Make a node the owner of shards, and return the worker's answer."""
        request = next(self._requests)
        await self.session(number).send_owner_hello(request, dict(epochs))
        return await self._report(number, request)

    async def runs(self, *jobs: Assignment, number: int = 0) -> None:
        """Wait until the worker has taken jobs that a node has sent."""
        report = await self.audit(number, *jobs)
        expect_refs(report.running, jobs, "running attempts in the report")

    async def stop(self, *jobs: Assignment, number: int = 0) -> None:
        """Have a node cancel attempts, and wait until the worker has confirmed each."""
        for job in jobs:
            await self.session(number).send_cancel(job.job_id, job.claim, CANCEL_REQUESTED)
        for job in jobs:
            await self.result(job, "stopped")

    async def _report(self, number: int, request: int) -> Report:
        session = self.session(number)

        def answers() -> list[Report]:
            reports = [one.report for one in session.of_kind("report")]
            return [one for one in reports if one.request_id == request]

        await eventually(answers, timeout_s=ANSWER_S, what="a report with the request_id that was asked with")
        return answers()[0]

    def _certify(self, folder: Path) -> grpc.ServerCredentials:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        self._variables["SHARDWHEEL_CA"] = str(folder / "ca.pem")
        chain = b"".join(one.bytes() for one in certificate.cert_chain_pems)
        return grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])


class Named(Protocol):
    """An attempt, or a job with its claim."""

    @property
    def job_id(self) -> int: ...

    @property
    def claim(self) -> int: ...


def expect_refs(got: Iterable[Named], wanted: Iterable[Named], what: str) -> None:
    """Raise unless both name the same attempts."""
    came, expected = (sorted((one.job_id, one.claim) for one in side) for side in (got, wanted))
    assert came == expected, f"{what}: (job, claim) {came}, expected {expected}"
