"""The way to the server: one channel, a deadline on every call, errors in words."""

from datetime import timedelta
from types import TracebackType
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from shard_manager.shardctl.call_error import failure_of
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.settings import Settings
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from shardwheel.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from worker_sdk.errors import ConfigurationError

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class Connection:
    """A channel to one server. Nothing is sent before the first call."""

    def __init__(self, settings: Settings) -> None:
        """Raises RefusedInputError if the files for TLS cannot be used."""
        self.settings = settings
        self._channel = _channel(settings)
        self._metadata = (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self.jobs = JobServiceStub(self._channel)
        self.schedules = ScheduleServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: timedelta | None = None,
    ) -> Response:
        """Calls with a deadline: `timeout`, by default that of the settings.

        Raises CommandFailedError, or RefusedInputError if the server says that the input is at fault.
        """
        limit = timeout or self.settings.call_timeout
        try:
            return await method(request, timeout=limit.total_seconds(), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise failure_of(error, self.settings, limit) from None


def _channel(settings: Settings) -> grpc.aio.Channel:
    options = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        # A command lives too short to gain from the process-wide pool of connections.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if settings.tls is None:
        return grpc.aio.insecure_channel(settings.address, options=options)
    try:
        pem = settings.tls.read()
    except ConfigurationError as error:
        raise RefusedInputError(f"error: --{error}") from None
    if pem.ca is not None and b"-----BEGIN CERTIFICATE-----" not in pem.ca:
        raise RefusedInputError(f"error: --ca: {settings.tls.ca} holds no PEM certificate")
    return grpc.aio.secure_channel(settings.address, pem.credentials(), options=options)
