"""Calls of any method, by its description."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from shardwheel.v1 import (
    admin_service_pb2,
    job_service_pb2,
    peer_service_pb2,
    schedule_service_pb2,
    worker_service_pb2,
)

FILES = (
    admin_service_pb2, job_service_pb2, peer_service_pb2, schedule_service_pb2, worker_service_pb2, health_pb2,
    reflection_pb2,
)  # fmt: skip
CALL_S = 10.0


@dataclass(frozen=True)
class Method:
    """A method, and a request of it that names the default namespace if it can name one."""

    path: str
    request: Message

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def services() -> list[ServiceDescriptor]:
    """Every service that the node's programs have code for."""
    return [service for file in FILES for service in file.DESCRIPTOR.services_by_name.values()]


def methods() -> Iterator[Method]:
    """Every method of them."""
    for service in services():
        for method in service.methods:
            yield Method(f"/{service.full_name}/{method.name}", _request(method))


def _request(method: MethodDescriptor) -> Message:
    request = GetMessageClass(method.input_type)()
    if isinstance(request, worker_service_pb2.SessionRequest):
        request.hello.namespace = "default"
    elif "namespace" in method.input_type.fields_by_name:
        request.namespace = "default"  # type: ignore[attr-defined]
    return request


async def code_of(
    channel: grpc.aio.Channel, method: Method, metadata: Sequence[tuple[str, str]] = ()
) -> grpc.StatusCode:
    """Call a method, of whatever kind, with one request; return its status, OK as soon as it answers."""
    stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method.path)
    call = stream(iter([method.request.SerializeToString()]), timeout=CALL_S, metadata=tuple(metadata))
    try:
        if await call.read() is not grpc.aio.EOF:
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError:
        pass
    finally:
        code = await call.code() if call.done() else None
        call.cancel()
    return grpc.StatusCode.OK if code is None else code
