"""The services that clients call, answering as a test tells them, over a real socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shardwheel.v1 import job_service_pb2, schedule_service_pb2

Rule = Callable[[Message], Message]
Context = grpc.aio.ServicerContext[Message, Message]

_SERVICES = (job_service_pb2.DESCRIPTOR.services_by_name["JobService"],
             schedule_service_pb2.DESCRIPTOR.services_by_name["ScheduleService"])  # fmt: skip


def failure(
    code: grpc.StatusCode,
    text: str,
    *,
    reason: str = "",
    metadata: dict[str, str] | None = None,
    violations: dict[str, str] | None = None,
    retry_s: float | None = None,
) -> status_pb2.Status:
    """Return the status of an error as a node makes it."""
    number, _ = code.value
    status = status_pb2.Status(code=number, message=text)
    if reason:
        info = error_details_pb2.ErrorInfo(reason=reason, domain="shardwheel", metadata=metadata or {})
        status.details.add().Pack(info)
    if violations:
        bad = error_details_pb2.BadRequest()
        for field, description in violations.items():
            bad.field_violations.add(field=field, description=description)
        status.details.add().Pack(bad)
    if retry_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(retry_s * 1000))
        status.details.add().Pack(retry)
    return status


class ScriptedApi:
    """A node's JobService and ScheduleService. `async with` starts it on a free port and stops it.

    A method answers with what `answers` holds for it: messages and statuses one after the other, the last one again and
    again, or a function of the request.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Message] | Rule] = {}
        self.requests: list[tuple[str, Message]] = []
        """Name of the method and request, in order; a stream's requests one by one."""
        self.metadata: dict[str, str] = {}
        """Of the latest call."""
        self.times_left: list[float] = []
        """Seconds to the deadline of each call when it came."""
        self.break_after: int | None = None
        """Streams are broken off after this many requests."""
        self.address = ""
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
        for service in _SERVICES:
            handlers: dict[str, grpc.RpcMethodHandler[Message, Message]] = {}
            for method in service.methods:
                deserialize = message_factory.GetMessageClass(method.input_type).FromString
                if method.client_streaming:
                    handlers[method.name] = grpc.stream_unary_rpc_method_handler(
                        self._stream(method.name), deserialize, _serialize
                    )
                else:
                    handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                        self._unary(method.name), deserialize, _serialize
                    )
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Break off all calls and stop listening."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def of(self, method: str) -> list[Message]:
        """Return the requests of a method so far."""
        return [request for name, request in self.requests if name == method]

    def _unary(self, method: str) -> Callable[[Message, Context], Awaitable[Message]]:
        async def answer(request: Message, context: Context) -> Message:
            self._note(context)
            self.requests.append((method, request))
            return await self._answer(method, request, context)

        return answer

    def _stream(self, method: str) -> Callable[[AsyncIterator[Message], Context], Awaitable[Message]]:
        async def answer(requests: AsyncIterator[Message], context: Context) -> Message:
            self._note(context)
            count = 0
            last: Message | None = None
            async for request in requests:
                self.requests.append((method, request))
                last = request
                count += 1
                if count == self.break_after:
                    break
            assert last is not None, "a stream has at least one request"
            return await self._answer(method, last, context)

        return answer

    async def _answer(self, method: str, request: Message, context: Context) -> Message:
        answers = self.answers[method]
        if callable(answers):
            answer = answers(request)
        else:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, status_pb2.Status):
            await context.abort_with_status(rpc_status.to_status(answer))
        return answer

    def _note(self, context: Context) -> None:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.times_left.append(context.time_remaining())


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
