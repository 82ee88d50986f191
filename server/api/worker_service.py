"""WorkerService: the conversation with one worker on one stream, and the renewal of its lease beside it."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from server.api import session_convert as convert
from server.api.attempt_calls import MAX_PROGRESS_BYTES, AttemptCalls
from server.api.caller import CALLER
from server.api.convert import duration, policies_of
from server.api.errors import AlreadyExists, ApiError, InvalidRequest, WrongState
from server.api.stream_link import StreamLink
from server.api.validation import Problems, check_handler, check_namespace, check_retry, check_text, check_timeouts
from server.domain.dispatch import QUEUE_PREFIX
from server.domain.errors import InvalidInput
from server.engine.engine import Engine
from server.engine.liveness import WorkerRefused
from server.engine.slots import WorkerSession
from server.store.catalog import Catalog, Namespace
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceServicer

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 10.0
MAX_HANDLERS: Final = 1000
MAX_SLOTS: Final = 100_000

Requests: TypeAlias = AsyncIterator[pb.SessionRequest]
StreamContext: TypeAlias = "grpc.aio.ServicerContext[Requests, AsyncIterator[pb.SessionResponse]]"
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Unary: TypeAlias = "grpc.aio.ServicerContext[Request, Awaitable[Response]]"


class LeaseKeeper(Protocol):
    """Renews a worker's lease by its name."""

    async def __call__(self, namespace_id: int, name: str, incarnation: int, lease: timedelta, identity: str) -> bool:
        """Return whether there is such an incarnation of that identity, and it has not ended."""


class WorkerService(WorkerServiceServicer):
    """Serves workers."""

    def __init__(
        self,
        *,
        engine: Engine,
        catalog: Catalog,
        keep_lease: LeaseKeeper,
        node: str,
        members: Callable[[], Mapping[str, str]],
        max_result_bytes: int,
        attempts: AttemptCalls,
    ) -> None:
        """Serve workers of this node; `members` returns the addresses of all live nodes by name, this one included."""
        self._engine = engine
        self._catalog = catalog
        self._keep_lease = keep_lease
        self._node = node
        self._members = members
        self._told: Mapping[str, str] = {}
        self._links: set[StreamLink] = set()
        self._max_result_bytes = max_result_bytes
        self._attempts = attempts
        self._session_ids = itertools.count(1)
        self._handler_names: dict[int, str] = {}

    async def KeepAlive(  # the name is the API's
        self, request: pb.KeepAliveRequest, context: "Unary[pb.KeepAliveRequest, pb.KeepAliveResponse]"
    ) -> pb.KeepAliveResponse:
        """Renew the lease of a worker whose interpreter is held."""
        problems = Problems()
        namespace = check_namespace(problems, request.namespace)
        check_text(problems, "worker", request.worker, 200)
        problems.check()
        lease = self._engine.timings.worker_lease
        namespace_id = (await self._catalog.namespace(namespace)).namespace_id
        identity = CALLER.get().name
        if not await self._keep_lease(namespace_id, request.worker, request.incarnation, lease, identity):
            raise WrongState(
                "WORKER_WITHOUT_LEASE", f"worker {request.worker!r} has no live incarnation {request.incarnation}"
            )
        return pb.KeepAliveResponse(lease_duration=duration(lease))

    async def StartAttempts(  # the name is the API's
        self, request: pb.StartAttemptsRequest, context: "Unary[pb.StartAttemptsRequest, pb.StartAttemptsResponse]"
    ) -> pb.StartAttemptsResponse:
        """Give published attempts to a worker."""
        return await self._attempts.start(request)

    async def FinishAttempts(  # the name is the API's
        self, request: pb.FinishAttemptsRequest, context: "Unary[pb.FinishAttemptsRequest, pb.FinishAttemptsResponse]"
    ) -> pb.FinishAttemptsResponse:
        """Store outcomes of started attempts."""
        return await self._attempts.finish(request, context.time_remaining())

    async def Session(  # the name is the API's
        self, request_iterator: Requests, context: StreamContext
    ) -> AsyncIterator[pb.SessionResponse]:
        """Talk with one worker until its stream ends."""
        requests = aiter(request_iterator)
        hello = await _first(requests)
        link = StreamLink(self._handler_names.__getitem__, self._engine.give_back)
        session, by_name = await self._admit(hello, link)
        running = [convert.ref_of(ref) for ref in hello.report.running]
        finished = [convert.ref_of(ref) for ref in hello.report.finished]
        # The welcome is queued before the engine may send anything on the session.
        welcome = pb.SessionResponse(welcome=self._welcome())
        link.send(welcome)
        superseded = await self._engine.attach(session, running, finished)
        welcome.welcome.superseded.extend(convert.attempt_ref(ref) for ref in superseded)
        link.send(_members_message(self._members()))
        self._links.add(link)
        log.info("worker connected", extra={"worker": session.name, "worker_id": session.worker_id})
        reader = asyncio.create_task(self._read(requests, session, link, by_name), name=f"session-{session.name}")
        try:
            while (message := await link.next_message()) is not None:
                yield message
            if reader.done() and isinstance(error := reader.exception(), ApiError):
                raise error
        finally:
            self._links.discard(link)
            link.close()
            reader.cancel()
            [said_goodbye] = await asyncio.gather(reader, return_exceptions=True)
            self._engine.detach(session, goodbye=said_goodbye is True)
            log.info("worker disconnected", extra={"worker": session.name, "goodbye": said_goodbye is True})

    async def tell_members(self) -> None:
        """Tell the workers which nodes there are, if that has changed: they keep a session to each."""
        members = self._members()
        if members != self._told:
            self._told = members
            for link in self._links:
                link.send(_members_message(members))

    async def _admit(self, hello: pb.Hello, link: StreamLink) -> tuple[WorkerSession, dict[str, int]]:
        namespace = await self._catalog.namespace(_check_hello(hello))
        with self._engine.liveness.arriving(namespace.namespace_id, hello.worker):
            return await self._register(namespace, hello, link)

    async def _register(
        self, namespace: Namespace, hello: pb.Hello, link: StreamLink
    ) -> tuple[WorkerSession, dict[str, int]]:
        defaults = {one.handler: policies_of(one.retry, one.timeouts) for one in hello.handlers}
        handlers = await self._catalog.register_handlers(namespace.namespace_id, defaults)
        by_name = {name: handler.handler_id for name, handler in handlers.items()}
        for handler in handlers.values():
            self._handler_names[handler.handler_id] = handler.name
            self._engine.handler_seen(handler.handler_id, paused=handler.paused)
        slots = {one.handler: one.max_concurrency for one in hello.handlers}
        try:
            worker_id = await self._engine.liveness.admit(
                namespace.namespace_id, hello.worker, hello.incarnation, hello.sdk[:200], slots, CALLER.get().name
            )
        except WorkerRefused as error:
            raise AlreadyExists("WORKER_NAME_IN_USE", str(error), {"worker": hello.worker}) from error
        session = WorkerSession(
            session_id=next(self._session_ids),
            worker_id=worker_id,
            name=hello.worker,
            namespace_id=namespace.namespace_id,
            link=link,
            registered={by_name[name]: count for name, count in slots.items()},
        )
        link.on_full = partial(self._engine.link_full, session)
        return session, by_name

    def _welcome(self) -> pb.Welcome:
        timings = self._engine.timings
        return pb.Welcome(
            node=self._node,
            heartbeat_interval=duration(timings.heartbeat),
            lease_duration=duration(timings.worker_lease),
            max_result_bytes=self._max_result_bytes,
        )

    async def _read(
        self, requests: Requests, session: WorkerSession, link: StreamLink, by_name: dict[str, int]
    ) -> bool:
        """Take in messages until the stream ends; return whether the worker said goodbye."""
        try:
            async for request in requests:
                session.heard_at = time.monotonic()
                if request.WhichOneof("message") == "goodbye":
                    await self._engine.goodbye(session, request.goodbye.reason[:200])
                    return True
                await self._take(request, session, link, by_name)
        except (grpc.aio.AbortError, ApiError):
            raise
        except Exception:
            log.exception("session failed", extra={"worker": session.name})
        finally:
            link.close()
        return False

    async def _take(
        self, request: pb.SessionRequest, session: WorkerSession, link: StreamLink, by_name: dict[str, int]
    ) -> None:
        match request.WhichOneof("message"):
            case "results":
                limit = self._max_result_bytes
                results = [
                    (convert.ref_of(one.attempt), convert.outcome_of(one, limit)) for one in request.results.results
                ]
                self._engine.results(session, results)
            case "credit":
                credits = request.credit.credits
                slots = {one.handler: min(max(0, one.slots), MAX_SLOTS) for one in credits}
                known = {by_name[name]: count for name, count in slots.items() if name in by_name}
                self._engine.credit(session, request.credit.sequence, known)
            case "heartbeat":
                link.send(pb.SessionResponse(heartbeat_ack=pb.HeartbeatAck(sequence=request.heartbeat.sequence)))
                await self._progress(session, request.heartbeat)
            case "report":
                held = [*request.report.running, *request.report.finished]
                self._engine.adoption.reported(
                    session, request.report.request_id, {convert.ref_of(ref) for ref in held}
                )
            case _:
                # Another hello, or a message of a newer worker: nothing to do.
                pass

    async def _progress(self, session: WorkerSession, heartbeat: pb.Heartbeat) -> None:
        fitting = [one for one in heartbeat.progress if len(one.data) <= MAX_PROGRESS_BYTES]
        if len(fitting) < len(heartbeat.progress):
            log.warning("progress too large, not kept", extra={"limit": MAX_PROGRESS_BYTES})
        if fitting:
            await self._engine.progress(session.worker_id, [(convert.ref_of(one.attempt), one.data) for one in fitting])


async def _first(requests: Requests) -> pb.Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            first = await anext(requests)
    except TimeoutError:
        reason = f"has to be the first message, within {HELLO_TIMEOUT_S:g} s"
        raise InvalidRequest([InvalidInput("hello", "", reason)]) from None
    except StopAsyncIteration:
        raise InvalidRequest([InvalidInput("hello", "", "has to be the first message")]) from None
    if first.WhichOneof("message") != "hello":
        raise InvalidRequest([InvalidInput("hello", first.WhichOneof("message"), "has to be the first message")])
    return first.hello


def _members_message(members: Mapping[str, str]) -> pb.SessionResponse:
    return pb.SessionResponse(
        members=pb.Members(members=[pb.Member(node=node, address=address) for node, address in members.items()])
    )


def _check_hello(hello: pb.Hello) -> str:
    problems = Problems()
    namespace = check_namespace(problems, hello.namespace, "hello.namespace")
    check_text(problems, "hello.worker", hello.worker, 200)
    if not hello.worker:
        problems.add("hello.worker", "", "is required")
    if hello.worker.startswith(QUEUE_PREFIX):
        problems.add("hello.worker", hello.worker, f"must not begin with {QUEUE_PREFIX!r}, as the leases of topics do")
    check_text(problems, "hello.sdk", hello.sdk, 200)
    if hello.incarnation <= 0:
        problems.add("hello.incarnation", hello.incarnation, "has to be a positive number, new for each start")
    if not 1 <= len(hello.handlers) <= MAX_HANDLERS:
        problems.add("hello.handlers", len(hello.handlers), f"takes 1 to {MAX_HANDLERS} handlers")
    seen = set()
    for number, one in enumerate(hello.handlers):
        field = f"hello.handlers[{number}]"
        check_handler(problems, one.handler, f"{field}.handler")
        if one.handler in seen:
            problems.add(f"{field}.handler", one.handler, "is registered twice")
        seen.add(one.handler)
        if not 1 <= one.max_concurrency <= MAX_SLOTS:
            problems.add(f"{field}.max_concurrency", one.max_concurrency, f"has to be from 1 to {MAX_SLOTS}")
        check_retry(problems, f"{field}.retry", one.retry)
        check_timeouts(problems, f"{field}.timeouts", one.timeouts)
    problems.check()
    return namespace
