"""A node that does what a test tells it, over a real socket: the server side of `WorkerService`.

By itself it answers hello with welcome, and acknowledges heartbeats, credits and results; each of these can be switched
off. Everything a worker sends is kept, and a test waits for it with `ScriptedSession.expect`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import grpc
from google.protobuf.duration_pb2 import Duration

from shardwheel.v1 import worker_service_pb2, worker_service_pb2_grpc
from shardwheel.v1.worker_service_pb2 import (
    Assignment,
    AttemptRef,
    Audit,
    Cancel,
    CancelBatch,
    CreditAck,
    Demand,
    Drain,
    FinishAttemptsRequest,
    FinishAttemptsResponse,
    HandlerDemand,
    HeartbeatAck,
    Hello,
    JobBatch,
    KeepAliveRequest,
    KeepAliveResponse,
    Member,
    Members,
    OwnerHello,
    Report,
    Result,
    ResultAck,
    ResultAcks,
    SessionRequest,
    SessionResponse,
    ShardEpoch,
    StartAttemptsRequest,
    StartAttemptsResponse,
    Welcome,
)

TIMEOUT_S = 5.0

Context = grpc.aio.ServicerContext[AsyncIterator[SessionRequest], AsyncIterator[SessionResponse]]
Refusal = tuple[grpc.StatusCode, str]


def duration(seconds: float) -> Duration:
    """Return a span of time in its wire form."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def assignment(
    job_id: int,
    handler: str,
    *,
    claim: int = 1,
    epoch: int = 1,
    attempt: int = 1,
    payload: bytes = b"",
    time_left_s: float | None = None,
    progress: bytes = b"",
) -> Assignment:
    """Return a claimed job."""
    message = Assignment(
        job_id=job_id,
        claim=claim,
        epoch=epoch,
        attempt=attempt,
        max_attempts=4,
        handler=handler,
        payload=payload,
        content_type="application/json" if payload else "",
        progress=progress,
    )
    message.due_at.GetCurrentTime()
    if time_left_s is not None:
        message.time_left.FromTimedelta(timedelta(seconds=time_left_s))
    return message


@dataclass(slots=True)
class Behaviour:
    """What a node does by itself."""

    ack_heartbeats: bool = True
    ack_credits: bool = True
    ack_results: ResultAck.Status.ValueType | None = ResultAck.ACCEPTED
    """Status of the acknowledgements, None for none."""
    refusal: Refusal | None = None
    """Answer to hello instead of welcome."""
    superseded: list[tuple[int, int]] = field(default_factory=list)
    """(job id, claim) of attempts that the welcome names as superseded."""
    answer_hello: bool = True


class ScriptedSession:
    """One stream of one worker."""

    def __init__(self, server: "ScriptedServer", hello: Hello, metadata: Mapping[str, str]) -> None:
        self.hello = hello
        self.metadata = metadata
        """What the call carried beside its messages."""
        self.received: list[SessionRequest] = []
        """Everything after hello, in order."""
        self.ended = asyncio.Event()
        self.credit: dict[str, int] = {}
        """By handler: what the worker has granted."""
        self._server = server
        self._taken = 0
        self._news = asyncio.Condition()
        self._outgoing: asyncio.Queue[SessionResponse | Refusal | None] = asyncio.Queue()

    async def send(self, response: SessionResponse) -> None:
        """Send any message."""
        await self._outgoing.put(response)

    async def send_jobs(self, *jobs: Assignment) -> None:
        """Hand out jobs in one message."""
        await self.send(SessionResponse(jobs=JobBatch(jobs=jobs)))

    async def send_cancel(self, job_id: int, claim: int, reason: worker_service_pb2.CancelReason.ValueType) -> None:
        """Ask an attempt to stop."""
        cancel = Cancel(attempt=AttemptRef(job_id=job_id, claim=claim), reason=reason)
        await self.send(SessionResponse(cancels=CancelBatch(cancels=[cancel])))

    async def send_acks(
        self, refs: Iterable[AttemptRef], status: ResultAck.Status.ValueType = ResultAck.ACCEPTED
    ) -> None:
        """Acknowledge results."""
        acks = [ResultAck(attempt=ref, status=status) for ref in refs]
        await self.send(SessionResponse(result_acks=ResultAcks(acks=acks)))

    async def send_credit_ack(self, sequence: int) -> None:
        """Tell that a credit was taken in."""
        await self.send(SessionResponse(credit_ack=CreditAck(sequence=sequence)))

    async def send_owner_hello(self, request_id: int, shards: dict[int, int]) -> None:
        """Announce the ownership of shards, epoch by shard."""
        items = [ShardEpoch(shard=shard, epoch=epoch) for shard, epoch in shards.items()]
        await self.send(SessionResponse(owner_hello=OwnerHello(request_id=request_id, shards=items)))

    async def send_audit(self, request_id: int, *attempts: tuple[int, int]) -> None:
        """Ask about attempts."""
        refs = [AttemptRef(job_id=job_id, claim=claim) for job_id, claim in attempts]
        await self.send(SessionResponse(audit=Audit(request_id=request_id, attempts=refs)))

    async def send_demand(self, handler: str, waiting: int) -> None:
        """Tell how many jobs wait."""
        demand = Demand(demands=[HandlerDemand(handler=handler, waiting=waiting)])
        await self.send(SessionResponse(demand=demand))

    async def send_members(self, members: dict[str, str]) -> None:
        """Tell which nodes there are, address by name."""
        items = [Member(node=node, address=address) for node, address in members.items()]
        await self.send(SessionResponse(members=Members(members=items)))

    async def send_drain(self) -> None:
        """Tell that the node is about to stop."""
        await self.send(SessionResponse(drain=Drain(grace=duration(5))))

    async def reset(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, text: str = "reset by the test") -> None:
        """End the stream with an error."""
        await self._outgoing.put((code, text))
        await asyncio.wait_for(self.ended.wait(), self._server.timeout_s)

    async def close(self) -> None:
        """End the stream without an error."""
        await self._outgoing.put(None)
        await asyncio.wait_for(self.ended.wait(), self._server.timeout_s)

    async def expect(
        self,
        kind: str,
        matches: Callable[[SessionRequest], bool] = lambda request: True,
        timeout_s: float | None = None,
    ) -> SessionRequest:
        """Return the first message of that kind that matches and came after what was expected last."""
        timeout_s = self._server.timeout_s if timeout_s is None else timeout_s
        found: list[SessionRequest] = []

        def look() -> bool:
            for position in range(self._taken, len(self.received)):
                request = self.received[position]
                if request.WhichOneof("message") == kind and matches(request):
                    self._taken = position + 1
                    found.append(request)
                    return True
            return False

        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(look)
        except TimeoutError:
            rest = [request.WhichOneof("message") for request in self.received[self._taken :]]
            raise AssertionError(f"no {kind} came within {timeout_s} s; got {rest}") from None
        return found[0]

    async def expect_results(self, count: int, timeout_s: float | None = None) -> list[Result]:
        """Return `count` results, of as many messages as it takes."""
        results: list[Result] = []
        while len(results) < count:
            request = await self.expect("results", timeout_s=timeout_s)
            results.extend(request.results.results)
        assert len(results) == count, f"expected {count} results, got {results}"
        return results

    async def expect_report(self, request_id: int) -> Report:
        """Return the answer to a question."""
        request = await self.expect("report", lambda message: message.report.request_id == request_id)
        return request.report

    async def expect_credit(self, handler: str, slots: int) -> None:
        """Wait until the worker grants that many slots."""

        def granted(_: SessionRequest) -> bool:
            return self.credit.get(handler) == slots

        if self.credit.get(handler) != slots:
            await self.expect("credit", granted)

    def of_kind(self, kind: str) -> list[SessionRequest]:
        """Return the messages of that kind so far."""
        return [request for request in self.received if request.WhichOneof("message") == kind]

    async def responses(
        self, requests: AsyncIterator[SessionRequest], context: Context
    ) -> AsyncIterator[SessionResponse]:
        """Serve the stream until either side ends it."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                response = await self._outgoing.get()
                if response is None:
                    return
                if isinstance(response, tuple):
                    await context.abort(response[0], response[1])
                yield response
        finally:
            reader.cancel()
            self.ended.set()

    async def _read(self, requests: AsyncIterator[SessionRequest]) -> None:
        try:
            async for request in requests:
                async with self._news:
                    self.received.append(request)
                    if request.WhichOneof("message") == "credit":
                        self.credit.update({item.handler: item.slots for item in request.credit.credits})
                    self._news.notify_all()
                await self._react(request)
        finally:
            await self._outgoing.put(None)

    async def _react(self, request: SessionRequest) -> None:
        behaviour = self._server.behaviour
        match request.WhichOneof("message"):
            case "heartbeat" if behaviour.ack_heartbeats:
                await self.send(SessionResponse(heartbeat_ack=HeartbeatAck(sequence=request.heartbeat.sequence)))
            case "credit" if behaviour.ack_credits:
                await self.send_credit_ack(request.credit.sequence)
            case "results" if behaviour.ack_results is not None:
                await self.send_acks((item.attempt for item in request.results.results), behaviour.ack_results)
            case _:
                pass


class ScriptedServer(worker_service_pb2_grpc.WorkerServiceServicer):
    """A node. `async with` starts it on a free port and stops it."""

    def __init__(
        self,
        node: str = "node-1",
        *,
        heartbeat_s: float = 0.2,
        lease_s: float = 1.0,
        max_result_bytes: int = 1000,
        credentials: grpc.ServerCredentials | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Set the timing. With `credentials` the node speaks TLS. `timeout_s`: how long a test waits for a message."""
        self.node = node
        self.heartbeat_s = heartbeat_s
        self.lease_s = lease_s
        self.max_result_bytes = max_result_bytes
        self.timeout_s = timeout_s
        self.behaviour = Behaviour()
        self.sessions: list[ScriptedSession] = []
        self.hellos: list[Hello] = []
        """All hellos, those that were refused too."""
        self.keep_alives: list[KeepAliveRequest] = []
        self.metadata: dict[str, str] = {}
        """Of the latest call."""
        self.address = ""
        self._credentials = credentials
        self._taken = 0
        self._news = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        self._server = grpc.aio.server()
        worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        address = self.address or "localhost:0"
        if self._credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, self._credentials)
        self.address = f"localhost:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Break off all streams and stop listening."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def next_session(self, timeout_s: float | None = None) -> ScriptedSession:
        """Return the next session that was not returned before."""
        async with asyncio.timeout(self.timeout_s if timeout_s is None else timeout_s), self._news:
            await self._news.wait_for(lambda: len(self.sessions) > self._taken)
        self._taken += 1
        return self.sessions[self._taken - 1]

    async def Session(
        self, request_iterator: AsyncIterator[SessionRequest], context: Context
    ) -> AsyncIterator[SessionResponse]:
        """Answer hello, then follow the script."""
        self.metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        first = await anext(request_iterator)
        assert first.WhichOneof("message") == "hello", "the first message has to be hello"
        self.hellos.append(first.hello)
        if self.behaviour.refusal is not None:
            await context.abort(*self.behaviour.refusal)
        if not self.behaviour.answer_hello:
            await asyncio.Event().wait()
        welcome = Welcome(
            node=self.node,
            heartbeat_interval=duration(self.heartbeat_s),
            lease_duration=duration(self.lease_s),
            max_result_bytes=self.max_result_bytes,
            superseded=[AttemptRef(job_id=job_id, claim=claim) for job_id, claim in self.behaviour.superseded],
        )
        yield SessionResponse(welcome=welcome)
        session = ScriptedSession(self, first.hello, self.metadata)
        async with self._news:
            self.sessions.append(session)
            self._news.notify_all()
        async for response in session.responses(request_iterator, context):
            yield response

    async def StartAttempts(
        self,
        request: StartAttemptsRequest,
        context: grpc.aio.ServicerContext[StartAttemptsRequest, Awaitable[StartAttemptsResponse]],
    ) -> StartAttemptsResponse:
        """Start nothing: no message of a topic is known here."""
        return StartAttemptsResponse()

    async def FinishAttempts(
        self,
        request: FinishAttemptsRequest,
        context: grpc.aio.ServicerContext[FinishAttemptsRequest, Awaitable[FinishAttemptsResponse]],
    ) -> FinishAttemptsResponse:
        """Refuse all outcomes."""
        acks = [ResultAck(attempt=one.attempt, status=ResultAck.STALE) for one in request.results]
        return FinishAttemptsResponse(acks=acks)

    async def KeepAlive(
        self,
        request: KeepAliveRequest,
        context: grpc.aio.ServicerContext[KeepAliveRequest, Awaitable[KeepAliveResponse]],
    ) -> KeepAliveResponse:
        """Note the call."""
        self.keep_alives.append(request)
        self.metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        return KeepAliveResponse(lease_duration=duration(self.lease_s))
