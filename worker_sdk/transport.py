"""Unary calls to the cluster: deadlines, retries, fail-over between addresses, typed errors."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from shardwheel.v1 import job_service_pb2_grpc, schedule_service_pb2_grpc
from worker_sdk.backoff import Backoff
from worker_sdk.connection import Connection
from worker_sdk.error_details import api_error
from worker_sdk.errors import ApiError, DeadlineExceeded, Unavailable

Request = TypeVar("Request")
Response = TypeVar("Response")


class Stubs:
    """The services of one node."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.jobs = job_service_pb2_grpc.JobServiceStub(channel)
        self.schedules = schedule_service_pb2_grpc.ScheduleServiceStub(channel)


class Transport:
    """Calls the cluster from one event loop: that in which it is first used."""

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self._stubs: dict[str, Stubs] = {}
        self._current = 0
        self._closed = False
        self._stamp: tuple[int, ...] = ()
        """Of the files for TLS when the channels were opened."""
        self._closing: list[asyncio.Task[None]] = []

    async def unary(
        self,
        method: Callable[[Stubs], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        repeatable: bool,
        timeout_s: float | None = None,
    ) -> Response:
        """Call a method and return its response.

        A `repeatable` call, which does no more when it is sent twice, is sent again while nodes are unavailable and its
        time is not over. Raises an `ApiError`.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        backoff = Backoff()
        while True:
            left = deadline - time.monotonic()
            try:
                return await method(self.stubs())(request, timeout=max(left, 0.001), metadata=self.connection.metadata)
            except grpc.aio.AioRpcError as failure:
                error = api_error(failure)
                delay = self._delay_before_repeat(error, backoff)
                if not repeatable or delay is None or time.monotonic() + delay >= deadline:
                    raise error from failure
            await asyncio.sleep(delay)

    def stubs(self) -> Stubs:
        """Return the services of the node in use. Raises `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError("the client is closed")
        self._take_new_certificates()
        addresses = self.connection.addresses
        address = addresses[self._current % len(addresses)]
        if address not in self._stubs:
            self._stubs[address] = Stubs(self.connection.open_channel(address))
        return self._stubs[address]

    async def close(self) -> None:
        """Close all channels; calls that are under way fail."""
        self._closed = True
        stubs, self._stubs = self._stubs, {}
        for stub in stubs.values():
            await stub.channel.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _take_new_certificates(self) -> None:
        """Open channels anew if the files for TLS have changed; calls on the old ones go on for a while."""
        tls = self.connection.tls
        if tls is None or not (stamp := tls.stamp()) or stamp == self._stamp:
            return
        if self._stamp:
            old, self._stubs = self._stubs, {}
            self._closing = [task for task in self._closing if not task.done()]
            self._closing += [asyncio.create_task(stubs.channel.close(self.timeout_s)) for stubs in old.values()]
        self._stamp = stamp

    def _delay_before_repeat(self, error: ApiError, backoff: Backoff) -> float | None:
        """Return how long to wait before a repetition, None if there should be none. Moves on to the next address."""
        if not isinstance(error, Unavailable):
            if isinstance(error, DeadlineExceeded):
                self._current += 1
            return None
        self._current += 1
        delay = backoff.next_delay_s()
        return max(delay, error.retry_delay.total_seconds()) if error.retry_delay is not None else delay
