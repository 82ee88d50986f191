"""A worker that does only what a test tells it to: the bare protocol over a real stream."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

import grpc

from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.waiting import eventually

_INCARNATIONS = itertools.count(1)


class RawWorker:
    """One session at a time. Received messages pile up by kind; nothing is answered by itself but owner hellos,
    audits and heartbeats, and those only while `polite`."""

    def __init__(
        self,
        address: str,
        *,
        handlers: dict[str, int],
        name: str = "raw",
        incarnation: int | None = None,
        namespace: str = "default",
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.address = address
        self.metadata = tuple(metadata)
        self.handlers = handlers
        self.name = name
        self.incarnation = next(_INCARNATIONS) if incarnation is None else incarnation
        self.namespace = namespace
        self.polite = True
        self.running: dict[tuple[int, int], pb.Assignment] = {}
        self.finished: set[tuple[int, int]] = set()
        self.jobs: list[pb.Assignment] = []
        self.acks: dict[tuple[int, int], pb.ResultAck.Status.ValueType] = {}
        self.cancels: list[pb.Cancel] = []
        self.welcome: pb.Welcome | None = None
        self.received: list[pb.SessionResponse] = []
        self.error: grpc.aio.AioRpcError | None = None
        self._outbox: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: grpc.aio.Channel | None = None
        self._sequence = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.break_stream()

    def beside(self, address: str) -> "RawWorker":
        """Return the same worker's stream to another node; what the worker holds is common to its streams."""
        other = RawWorker(
            address, handlers=self.handlers, name=self.name, incarnation=self.incarnation, namespace=self.namespace,
            metadata=self.metadata,
        )  # fmt: skip
        other.running, other.finished = self.running, self.finished
        return other

    async def connect(self, *, credit: bool = True) -> None:
        """Open a stream, say hello with what runs, and wait for the welcome."""
        self.welcome, self.error = None, None
        self._outbox = asyncio.Queue()
        self._channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.send(hello=self.hello())
        if credit:
            self.credit(self.handlers)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]
        await eventually(lambda: self.welcome is not None or self.error is not None)
        if self.error is not None:
            raise self.error

    def hello(self) -> pb.Hello:
        """Return the hello of a new stream."""
        registrations = [pb.HandlerRegistration(handler=h, max_concurrency=n) for h, n in self.handlers.items()]
        return pb.Hello(
            worker=self.name,
            incarnation=self.incarnation,
            namespace=self.namespace,
            handlers=registrations,
            report=self.report(0),
            sdk="raw/0",
        )

    def report(self, request_id: int) -> pb.Report:
        """Return what the worker holds."""
        return pb.Report(
            request_id=request_id,
            running=[pb.AttemptRef(job_id=job, claim=claim) for job, claim in self.running],
            finished=[pb.AttemptRef(job_id=job, claim=claim) for job, claim in self.finished],
        )

    def send(self, **message: object) -> None:
        """Queue one message."""
        build: Callable[..., pb.SessionRequest] = pb.SessionRequest
        self._outbox.put_nowait(build(**message))

    def credit(self, slots: dict[str, int]) -> None:
        """Grant slots."""
        credits = [pb.HandlerCredit(handler=handler, slots=count) for handler, count in slots.items()]
        self.send(credit=pb.Credit(sequence=next(self._sequence), credits=credits))

    def result(self, job: pb.Assignment, **outcome: object) -> None:
        """Report the outcome of a job: `completed=…`, `failed=…` and so on."""
        key = (job.job_id, job.claim)
        self.running.pop(key, None)
        self.finished.add(key)
        ref = pb.AttemptRef(job_id=job.job_id, claim=job.claim)
        build: Callable[..., pb.Result] = pb.Result
        self.send(results=pb.ResultBatch(results=[build(attempt=ref, **outcome)]))

    def complete(self, jobs: Sequence[pb.Assignment]) -> None:
        """Complete jobs."""
        for job in jobs:
            self.result(job, completed=pb.Completed(result=b"done", content_type="text/plain"))

    async def next_jobs(self, count: int, timeout: float = 10.0) -> list[pb.Assignment]:
        """Wait for `count` jobs and take them."""
        await eventually(lambda: len(self.jobs) >= count, timeout_s=timeout)
        taken, self.jobs = self.jobs[:count], self.jobs[count:]
        return taken

    async def acked(self, job: pb.Assignment, timeout: float = 10.0) -> "pb.ResultAck.Status.ValueType":
        """Wait for the fate of a job's result."""
        await eventually(lambda: (job.job_id, job.claim) in self.acks, timeout_s=timeout)
        return self.acks[(job.job_id, job.claim)]

    async def break_stream(self) -> None:
        """End the stream without a word, as a killed process does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def freeze(self) -> None:
        """Stop sending heartbeats and answers, with the stream left open, as a stopped process does."""
        self.polite = False

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self.polite = True

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        while (message := await self._outbox.get()) is not None:
            yield message

    async def _read(self) -> None:
        assert self._channel is not None
        stub = WorkerServiceStub(self._channel)
        try:
            async for response in stub.Session(self._requests(), metadata=self.metadata):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            self.error = error

    def _take(self, response: pb.SessionResponse) -> None:
        self.received.append(response)
        match response.WhichOneof("message"):
            case "welcome":
                self.welcome = response.welcome
                for ref in response.welcome.superseded:
                    self.running.pop((ref.job_id, ref.claim), None)
                    self.finished.discard((ref.job_id, ref.claim))
            case "jobs":
                for job in response.jobs.jobs:
                    self.running[(job.job_id, job.claim)] = job
                    self.jobs.append(job)
            case "result_acks":
                for ack in response.result_acks.acks:
                    key = (ack.attempt.job_id, ack.attempt.claim)
                    self.finished.discard(key)
                    self.acks[key] = ack.status
            case "cancels":
                self.cancels.extend(response.cancels.cancels)
            case "owner_hello" if self.polite:
                self.send(report=self.report(response.owner_hello.request_id))
            case "audit" if self.polite:
                self.send(report=self.report(response.audit.request_id))
            case _:
                pass

    async def _beat(self) -> None:
        while True:
            interval = self.welcome.heartbeat_interval.ToMilliseconds() if self.welcome else 100
            await asyncio.sleep(interval / 1000)
            if self.polite:
                self.send(heartbeat=pb.Heartbeat(sequence=next(self._sequence)))


@contextlib.asynccontextmanager
async def raw_worker(
    address: str, handlers: dict[str, int], name: str = "raw", *, metadata: Sequence[tuple[str, str]] = ()
) -> AsyncIterator[RawWorker]:
    """A connected raw worker."""
    worker = RawWorker(address, handlers=handlers, name=name, metadata=metadata)
    async with worker:
        yield worker
