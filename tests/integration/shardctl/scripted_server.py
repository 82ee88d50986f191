"""A gRPC server on a real socket whose answers a test writes down: it records each call and says what it was told."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shardwheel.v1 import admin_service_pb2, job_service_pb2, schedule_service_pb2

Answer = Message | Exception
Wanted = TypeVar("Wanted", bound=Message)

_SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (job_service_pb2, "JobService"),
        (schedule_service_pb2, "ScheduleService"),
        (admin_service_pb2, "AdminService"),
    )
]


class Refusal(Exception):
    """An answer that is an error, with the details that the API promises."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *fields: tuple[str, str],
        reason: str = "TEST",
        retry_in_s: int = 0,
        repeat_is_safe: bool = True,
    ) -> None:
        super().__init__(message)
        metadata = {"repeat_is_safe": str(repeat_is_safe).lower()}
        details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason, domain="shardwheel", metadata=metadata)]
        if fields:
            violations = [
                error_details_pb2.BadRequest.FieldViolation(field=name, description=reason) for name, reason in fields
            ]
            details.append(error_details_pb2.BadRequest(field_violations=violations))
        if retry_in_s:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.seconds = retry_in_s
            details.append(retry)
        self.status = status_pb2.Status(code=code.value[0], message=message, details=map(_packed, details))


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed


@dataclass(slots=True)
class ScriptedServer:
    """What a test tells the server and learns from it."""

    address: str = ""
    calls: list[tuple[str, Message]] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    # Seconds that the caller left for each call.
    time_left: list[float] = field(default_factory=list)
    _answers: dict[str, Callable[[Message], Answer]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, *answers: Answer) -> None:
        """Answers calls of the method with these, one after the other; the last one again and again."""
        left = list(answers)

        def next_answer(_: Message) -> Answer:
            return left.pop(0) if len(left) > 1 else left[0]

        self._answers[method] = next_answer

    def answer_with(self, method: str, function: Callable[[Message], Answer]) -> None:
        """Answers calls of the method with what the function makes of the request."""
        self._answers[method] = function

    def requests(self, kind: type[Wanted]) -> list[Wanted]:
        """The requests of this kind, in their order."""
        return [request for _, request in self.calls if isinstance(request, kind)]

    def serve(self, method: str, request: Message, context: grpc.ServicerContext) -> Message:
        """Handles one call."""
        with self._lock:
            self.calls.append((method, request))
            self.metadata.append(dict(context.invocation_metadata()))
            self.time_left.append(context.time_remaining())
            function = self._answers.get(method)
            answer = function(request) if function is not None else None
        if isinstance(answer, Refusal):
            context.abort_with_status(rpc_status.to_status(answer.status))
        if not isinstance(answer, Message):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the test has no answer for {method}")
        return answer


def _handlers(server: ScriptedServer) -> Iterable[grpc.GenericRpcHandler]:
    for service in _SERVICES:
        methods = {
            method.name: grpc.unary_unary_rpc_method_handler(
                _behaviour(server, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
            if not method.client_streaming
        }
        yield grpc.method_handlers_generic_handler(service.full_name, methods)


def _behaviour(server: ScriptedServer, method: str) -> Callable[[Message, grpc.ServicerContext], Message]:
    return lambda request, context: server.serve(method, request, context)


@contextmanager
def scripted_server(credentials: grpc.ServerCredentials | None = None) -> Iterator[ScriptedServer]:
    """Runs a server on a free loopback port until the end of the block."""
    scripted = ScriptedServer()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers(tuple(_handlers(scripted)))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    scripted.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield scripted
    finally:
        server.stop(grace=None).wait(timeout=10)
