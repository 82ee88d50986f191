"""What happens to every call before and after the service's own code.

The doorkeeper lets it in, or not; health alone is open to everybody and passes untouched. Requests are read here:
malformed ones, and ones of our services with fields that this version does not know, are refused before the service
sees them. Errors that leave the service become statuses.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from server.access.rules import RULES, Place
from server.api.caller import CALLER
from server.api.doorkeeper import Doorkeeper, Visit
from server.api.errors import InvalidRequest, NodeStopping, Unauthenticated, status_of
from server.domain.errors import InvalidInput

OUR_METHODS: Final = "/shardwheel."
# Sessions speak with workers of other versions, and nodes with nodes: what they do not know is ignored, not refused.
LENIENT_METHODS: Final = ("/shardwheel.v1.WorkerService/", "/shardwheel.v1.PeerService/")

MAX_UNKNOWN_FIELDS: Final = 20

# grpc types its method handlers with Any.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# Told of every call that ended: method, name of the status code ("CANCELLED" if the client went away), seconds.
CallObserver: TypeAlias = Callable[[str, str, float], None]


class _Unreadable:
    """Takes the place of a request that could not be read."""

    __slots__ = ("error",)

    def __init__(self, error: InvalidRequest) -> None:
        self.error = error


class RequestGuard(grpc.aio.ServerInterceptor):
    """Lets callers in, reads requests, turns errors into statuses, and reports each call to `observer`."""

    def __init__(self, doorkeeper: Doorkeeper, observer: CallObserver | None = None) -> None:
        self._doorkeeper = doorkeeper
        self._observer = observer
        self._guarded: dict[str, Handler] = {}
        self._calls: dict[asyncio.Task[Any], int | None] = {}
        """Calls under way, each with the credential of its caller."""
        self._ending = False
        self._lost: set[asyncio.Task[Any]] = set()
        """Calls that end because their credential is of no use any more."""

    def end_calls(self) -> None:
        """End the calls that are under way with a status that says so: the node stops."""
        self._ending = True
        for task in list(self._calls):
            task.cancel()

    def end_calls_of(self, credential_id: int) -> None:
        """End the calls that are under way with this credential: it has been revoked or has expired."""
        for task in [task for task, shown in self._calls.items() if shown == credential_id]:
            self._lost.add(task)
            task.cancel()

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Return the guarded handler of a method."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or ((rule := RULES.get(method)) is not None and rule.place is Place.OPEN):
            return handler
        guarded = self._guarded.get(method)
        if guarded is None:
            guarded = self._guarded[method] = self._guard(method, handler)
        return guarded

    def _guard(self, method: str, handler: Handler) -> Handler:
        assert handler.request_deserializer is not None
        strict = method.startswith(OUR_METHODS) and not method.startswith(LENIENT_METHODS)
        read = _reader(handler.request_deserializer, strict=strict)
        write = handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary), read, write)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._answering(method, handler.stream_unary), read, write)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream), read, write)
        return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream), read, write)

    def _answering(self, method: str, behavior: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            started, code = time.perf_counter(), "CANCELLED"
            try:
                visit = await self._doorkeeper.enter(method, context)
                with self._under_way(visit):
                    answer = await behavior(_readable(request, visit), context)
                code = "OK"
            except grpc.aio.AbortError:
                code = "ABORTED"
                raise
            except Exception as error:
                status = status_of(error, method)
                code = status.code.name
                await context.abort_with_status(status)
            finally:
                self._report(method, code, started)
            return answer

        return call

    def _streaming(self, method: str, behavior: Any) -> Any:
        """Guard a method that answers with a stream, in either of the two styles that grpc.aio allows."""
        if not inspect.isasyncgenfunction(behavior):
            return self._answering(method, behavior)

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            started, code = time.perf_counter(), "CANCELLED"
            try:
                visit = await self._doorkeeper.enter(method, context)
                with self._under_way(visit):
                    async for answer in behavior(_readable(request, visit), context):
                        yield answer
                code = "OK"
            except grpc.aio.AbortError:
                code = "ABORTED"
                raise
            except Exception as error:
                status = status_of(error, method)
                code = status.code.name
                await context.abort_with_status(status)
            finally:
                self._report(method, code, started)

        return call

    @contextmanager
    def _under_way(self, visit: Visit) -> Iterator[None]:
        """Let what runs in here be ended from outside: it raises `NodeStopping` or `Unauthenticated` then."""
        task = asyncio.current_task()
        assert task is not None
        CALLER.set(visit.principal)
        self._calls[task] = visit.principal.credential_id
        try:
            yield
        except asyncio.CancelledError:
            if not (self._ending or task in self._lost):
                raise
            task.uncancel()
            raise (NodeStopping() if self._ending else _credential_lost()) from None
        finally:
            del self._calls[task]
            self._lost.discard(task)

    def _report(self, method: str, code: str, started: float) -> None:
        if self._observer is not None:
            self._observer(method, code, time.perf_counter() - started)


class _Readable:
    """The requests of a stream; raises at the first that could not be read, or is not allowed."""

    def __init__(self, requests: AsyncIterator[Any], visit: Visit) -> None:
        self._requests = requests
        self._visit = visit

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return _readable(await anext(self._requests), self._visit)


def _readable(request: Any, visit: Visit) -> Any:
    if isinstance(request, _Unreadable):
        raise request.error
    if isinstance(request, Message):
        visit.check(request)
        return request
    return _Readable(aiter(request), visit)


def _credential_lost() -> Unauthenticated:
    message = "the credential was revoked or has expired while the call was under way; it may have been carried out"
    return Unauthenticated("TOKEN_UNKNOWN", message)


def _reader(deserialize: Callable[[bytes], Message], *, strict: bool) -> Callable[[bytes], Message | _Unreadable]:
    def read(data: bytes) -> Message | _Unreadable:
        try:
            message = deserialize(data)
        except DecodeError as error:
            refused = InvalidInput("request", f"{len(data)} bytes", f"is not a well-formed message: {error}")
            return _Unreadable(InvalidRequest([refused], "MALFORMED_REQUEST"))
        if strict:
            # Cheap on a message without unknown fields; where they are is looked for only if there are some.
            size = message.ByteSize()
            message.DiscardUnknownFields()
            if message.ByteSize() != size:
                return _Unreadable(_unknown_fields(deserialize(data)))
        return message

    return read


def _unknown_fields(message: Message) -> InvalidRequest:
    reason = "is not served by this version; leave it out, or upgrade the node"
    places = ((path, number) for path, part in _parts(message, "") for number in _unknown_numbers(part))
    found = [
        InvalidInput(f"{path}.{number}".lstrip("."), f"field {number}", reason)
        for path, number in islice(places, MAX_UNKNOWN_FIELDS)
    ]
    return InvalidRequest(found or [InvalidInput("request", "an unknown field", reason)], "UNKNOWN_FIELD")


def _unknown_numbers(message: Message) -> list[int]:
    fields = UnknownFieldSet(message)
    return sorted({fields[index].field_number for index in range(len(fields))})


def _parts(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """Yield a message and all messages in it, with their paths."""
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        place = f"{path}.{field.name}".lstrip(".")
        if isinstance(value, Message):
            yield from _parts(value, place)
        else:
            for index, item in enumerate(value):
                yield from _parts(item, f"{place}[{index}]")
