"""One stream to one node: hello and welcome, reading, writing, heartbeats."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import grpc

from shardwheel.v1 import worker_service_pb2, worker_service_pb2_grpc
from shardwheel.v1.worker_service_pb2 import (
    Audit,
    CancelBatch,
    Credit,
    Goodbye,
    Heartbeat,
    Hello,
    JobBatch,
    Members,
    OwnerHello,
    Progress,
    Report,
    Result,
    ResultAck,
    ResultBatch,
    SessionRequest,
    SessionResponse,
    Welcome,
)
from worker_sdk.call_status import status_of, true_failure
from worker_sdk.connection import Connection

ANSWER_TIMEOUT_S = 5.0
"""A node that takes longer to accept a connection or to answer hello is taken for dead."""
_BATCH_RESULTS = 2000
# The usual limit of a gRPC message is 4 MiB; one result may be 1 MiB.
_BATCH_BYTES = 2 << 20

_log = logging.getLogger("worker_sdk")


class SessionListener(Protocol):
    """Takes in what nodes say. All methods are called in the session's event loop and must not block."""

    def hello(self) -> Hello:
        """Return the introduction, with the report as of now."""
        ...

    def on_welcome(self, session: "Session", welcome: Welcome) -> None:
        """The node has accepted the session."""
        ...

    def on_jobs(self, session: "Session", batch: JobBatch) -> None:
        """The node has handed out jobs."""
        ...

    def on_acks(self, acks: Sequence[ResultAck]) -> None:
        """A node tells the fate of results."""
        ...

    def on_cancels(self, batch: CancelBatch) -> None:
        """A node wants attempts to stop."""
        ...

    def on_owner_hello(self, session: "Session", hello: OwnerHello) -> None:
        """The node has become the owner of shards."""
        ...

    def on_audit(self, session: "Session", audit: Audit) -> None:
        """The node asks about attempts."""
        ...

    def on_demand(self, session: "Session", demand: worker_service_pb2.Demand) -> None:
        """The node tells how many jobs wait on it."""
        ...

    def on_credit_ack(self, session: "Session", sequence: int) -> None:
        """The node has taken in a credit."""
        ...

    def on_members(self, session: "Session", members: Members) -> None:
        """The node tells which nodes there are."""
        ...

    def on_drain(self, session: "Session") -> None:
        """The node is about to stop."""
        ...

    def take_progress(self, session: "Session") -> list[Progress]:
        """Return the progress that this session should send now."""
        ...


class Session:
    """A stream from connecting to its end. A new object is made for each try."""

    _numbers = itertools.count(1)

    def __init__(self, connection: Connection, address: str, listener: SessionListener) -> None:
        self.address = address
        self.node = ""
        """Name of the node, known from the welcome on."""
        self.stream = f"stream-{next(self._numbers)}"
        """Names this stream among all that the process ever has."""
        self.retiring = False
        """Whether the node is about to stop, or has left the cluster: nothing more should go through it."""
        self.stopping = False
        """Whether the node has said itself that it is about to stop."""
        self._connection = connection
        self._listener = listener
        self._channel = connection.open_channel(address)
        self._call: grpc.aio.StreamStreamCall[SessionRequest, SessionResponse] | None = None
        self.interval_s = 3.0
        """Time between heartbeats; the node sets it."""
        self._silence_limit_s = 10.0
        self._last_heard = time.monotonic()
        self._wake = asyncio.Event()
        self._credits: list[Credit] = []
        self._progress: list[Progress] = []
        self._results: list[Result] = []
        self._reports: list[Report] = []
        self._beat_due = False
        self._beats = 0
        self._goodbye: str | None = None
        self._ending = False

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection, for calls beside the stream. It is closed when the session ends."""
        return self._channel

    async def connect(self) -> None:
        """Wait until the connection stands, or fails (which the following hello reports), for at most 5 s."""
        states = grpc.ChannelConnectivity
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            state = self._channel.get_state(try_to_connect=True)
            while state not in (states.READY, states.TRANSIENT_FAILURE, states.SHUTDOWN):
                await self._channel.wait_for_state_change(state)
                state = self._channel.get_state(try_to_connect=True)

    async def open(self) -> Welcome:
        """Send hello and return the welcome. Raises `AioRpcError`, or `TimeoutError` after 5 s."""
        stub = worker_service_pb2_grpc.WorkerServiceStub(self._channel)
        self._call = call = stub.Session(metadata=self._connection.metadata)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await call.write(SessionRequest(hello=self._listener.hello()))
            response = await call.read()
        if not isinstance(response, SessionResponse):
            await self._raise_if_refused(call)
        if not isinstance(response, SessionResponse) or response.WhichOneof("message") != "welcome":
            raise TimeoutError(f"{self.address} did not answer hello with welcome")
        welcome = response.welcome
        self.node = welcome.node
        if welcome.HasField("heartbeat_interval"):
            self.interval_s = max(0.05, welcome.heartbeat_interval.ToTimedelta().total_seconds())
        if welcome.HasField("lease_duration"):
            lease = welcome.lease_duration.ToTimedelta().total_seconds()
            # Three heartbeats unanswered, but soon enough to be heard again before the lease is over.
            self._silence_limit_s = max(3 * self.interval_s, lease * 2 / 3)
        self._last_heard = time.monotonic()
        return welcome

    async def serve(self) -> None:
        """Read, write and beat until the stream ends. Raises `AioRpcError` if it ends with an error."""
        call = self._call
        if call is None:
            raise RuntimeError("the session is not open")
        tasks = [asyncio.create_task(self._write(call)), asyncio.create_task(self._beat(call))]
        try:
            while True:
                response = await call.read()
                if not isinstance(response, SessionResponse):
                    break
                self._last_heard = time.monotonic()
                self._take_in(response)
            await self._raise_if_refused(call)
        except grpc.aio.AioRpcError as failure:
            raise await true_failure(call, failure) from failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Break off the stream and close the connection."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    def send_results(self, results: Sequence[Result], progress: Sequence[Progress] = ()) -> None:
        """Send results, after the latest progress of their attempts."""
        self._progress.extend(progress)
        self._results.extend(results)
        self._wake.set()

    def send_credit(self, credit: Credit) -> None:
        """Send a credit."""
        self._credits.append(credit)
        self._wake.set()

    def send_report(self, report: Report) -> None:
        """Send an answer to owner_hello or audit, after all results so far."""
        self._reports.append(report)
        self._wake.set()

    def end(self) -> None:
        """End the stream without goodbye, after everything that waits to be sent: the worker lives on."""
        self._ending = True
        self._wake.set()

    def send_goodbye(self, reason: str) -> None:
        """End the stream, after everything that waits to be sent."""
        self._goodbye = reason
        self._wake.set()

    async def _write(self, call: "grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]") -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for request in self._requests():
                    await call.write(request)
                if self._wake.is_set():
                    # More has come while that was written, and the end comes after it.
                    continue
                if self._goodbye is not None:
                    await call.write(SessionRequest(goodbye=Goodbye(reason=self._goodbye)))
                if self._goodbye is not None or self._ending:
                    await call.done_writing()
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended; the reader tells how.
            pass
        except Exception:
            _log.exception("writing to node %s failed", self.node)
            call.cancel()

    def _requests(self) -> Iterator[SessionRequest]:
        """Yield what waits to be sent now; what is added meanwhile has woken the writer again.

        All of it is taken at one moment. A result that is added while something is written would otherwise go ahead of
        its attempt's last progress, and a report ahead of the results that came before it.
        """
        if self._beat_due:
            self._progress.extend(self._listener.take_progress(self))
        beat = self._beat_due or bool(self._progress)
        credits, self._credits = self._credits, []
        progress, self._progress, self._beat_due = self._progress, [], False
        results, self._results = self._results, []
        reports, self._reports = self._reports, []
        for credit in credits:
            yield SessionRequest(credit=credit)
        if beat:
            self._beats += 1
            yield SessionRequest(heartbeat=Heartbeat(sequence=self._beats, progress=progress))
        for batch in batched_results(results):
            yield SessionRequest(results=batch)
        for report in reports:
            yield SessionRequest(report=report)

    async def _beat(self, call: "grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]") -> None:
        """Send heartbeats, and give the stream up when the node has been silent for too long."""
        while True:
            planned = time.monotonic() + self.interval_s
            await asyncio.sleep(self.interval_s)
            now = time.monotonic()
            if now - planned > self.interval_s:
                # This process was held up: what the node said meanwhile has not been read yet.
                self._last_heard = now
            if now - self._last_heard > self._silence_limit_s:
                _log.warning("node %s at %s is silent; reconnecting", self.node, self.address)
                call.cancel()
                return
            self._beat_due = True
            self._wake.set()

    def _take_in(self, response: SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "jobs":
                self._listener.on_jobs(self, response.jobs)
            case "result_acks":
                self._listener.on_acks(response.result_acks.acks)
            case "cancels":
                self._listener.on_cancels(response.cancels)
            case "owner_hello":
                self._listener.on_owner_hello(self, response.owner_hello)
            case "audit":
                self._listener.on_audit(self, response.audit)
            case "demand":
                self._listener.on_demand(self, response.demand)
            case "credit_ack":
                self._listener.on_credit_ack(self, response.credit_ack.sequence)
            case "members":
                self._listener.on_members(self, response.members)
            case "drain":
                self._listener.on_drain(self)
            case "heartbeat_ack" | "welcome" | None:
                # Hearing anything at all is what a heartbeat is for. None: a message of a newer node.
                pass

    async def _raise_if_refused(self, call: "grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]") -> None:
        """Raise the stream's status if it ended with an error."""
        status = await status_of(call)
        if status.code() is not grpc.StatusCode.OK:
            raise status


def batched_results(results: Sequence[Result]) -> Iterator[ResultBatch]:
    """Yield the results in messages that keep to the usual limits."""
    start, size = 0, 0
    for position, result in enumerate(results):
        more = result.ByteSize()
        if position > start and (size + more > _BATCH_BYTES or position - start >= _BATCH_RESULTS):
            yield ResultBatch(results=results[start:position])
            start, size = position, 0
        size += more
    if start < len(results):
        yield ResultBatch(results=results[start:])
