"""The gRPC server of a node: limits, keepalive, reflection, health, and our services behind the guard."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from server.access.gate import Gate
from server.api.doorkeeper import Doorkeeper
from server.api.interceptor import CallObserver, RequestGuard
from server.domain.errors import InvalidInput
from shardwheel.v1 import (
    admin_service_pb2_grpc,
    job_service_pb2_grpc,
    peer_service_pb2_grpc,
    schedule_service_pb2_grpc,
    worker_service_pb2_grpc,
)

Servicer: TypeAlias = (
    job_service_pb2_grpc.JobServiceServicer
    | schedule_service_pb2_grpc.ScheduleServiceServicer
    | worker_service_pb2_grpc.WorkerServiceServicer
    | admin_service_pb2_grpc.AdminServiceServicer
    | peer_service_pb2_grpc.PeerServiceServicer
)

# The generated functions take their own servicer each.
_SERVICES: Final[Mapping[str, tuple[type, Callable[[Any, grpc.aio.Server], None]]]] = {
    "shardwheel.v1.JobService": (
        job_service_pb2_grpc.JobServiceServicer,
        job_service_pb2_grpc.add_JobServiceServicer_to_server,
    ),
    "shardwheel.v1.ScheduleService": (
        schedule_service_pb2_grpc.ScheduleServiceServicer,
        schedule_service_pb2_grpc.add_ScheduleServiceServicer_to_server,
    ),
    "shardwheel.v1.WorkerService": (
        worker_service_pb2_grpc.WorkerServiceServicer,
        worker_service_pb2_grpc.add_WorkerServiceServicer_to_server,
    ),
    "shardwheel.v1.AdminService": (
        admin_service_pb2_grpc.AdminServiceServicer,
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server,
    ),
    "shardwheel.v1.PeerService": (
        peer_service_pb2_grpc.PeerServiceServicer,
        peer_service_pb2_grpc.add_PeerServiceServicer_to_server,
    ),
}


# A call that was told to end may take so long until it is cut off.
CUT_OFF_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one client may send and open. `concurrent_calls` counts all calls of the node, streams included."""

    # Above the largest batch and the largest refused payload that is answered with the field that is too large.
    message_bytes: int = 6 * 1024 * 1024
    metadata_bytes: int = 16 * 1024
    concurrent_calls: int = 20_000
    streams_per_connection: int = 1_000


class ApiServer:
    """A gRPC server on one port. Health says NOT_SERVING until `set_serving(True)`, and again from `stop` on."""

    def __init__(
        self,
        servicers: Sequence[Servicer],
        *,
        gate: Gate,
        limits: ServerLimits | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        limits = limits or ServerLimits()
        self._guard = RequestGuard(Doorkeeper(gate), observer)
        gate.keyring.on_lost = self._guard.end_calls_of
        self._server = grpc.aio.server(
            interceptors=[self._guard],
            options=_options(limits),
            maximum_concurrent_rpcs=limits.concurrent_calls,
        )
        self._names = [name for servicer in servicers for name in self._add(servicer)]
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflected = (*self._names, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, self._server)

    def bind(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on host:port and return the port; port 0 takes a free one. Raise `InvalidInput` if it is taken."""
        try:
            if credentials is not None:
                return self._server.add_secure_port(address, credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            reason = f"cannot be listened on: {error}; choose another port, or stop what listens there"
            raise InvalidInput("listen", address, reason) from error

    async def start(self) -> None:
        """Answer calls."""
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Say in grpc.health.v1 whether this node wants calls."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let those under way end within `grace_s` seconds, then end them with UNAVAILABLE."""
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self._server.stop(grace_s + CUT_OFF_S))
        if not (await asyncio.wait([stopping], timeout=grace_s))[0]:
            self._guard.end_calls()
        await stopping

    async def wait(self) -> None:
        """Return when the server has stopped."""
        await self._server.wait_for_termination()

    def _add(self, servicer: Servicer) -> list[str]:
        names = []
        for name, (kind, add) in _SERVICES.items():
            if isinstance(servicer, kind):
                add(servicer, self._server)
                names.append(name)
        return names


def _options(limits: ServerLimits) -> list[tuple[str, Any]]:
    return [
        # A second process on the same port would get half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        # Workers and clients may ping this often, also without a call; dead connections are noticed by our own pings.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A connection without any sign of life for the keepalive's timeout is closed. One on which data comes is alive,
        # even if a proxy lets no ping through: that alone must not end it, as it would after a minute.
        ("grpc.http2.ping_timeout_ms", 2**31 - 1),
    ]
