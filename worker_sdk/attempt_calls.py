"""Calls to start and finish attempts, through whichever node the worker has a session to."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from shardwheel.v1.worker_service_pb2 import (
    Assignment,
    AttemptToStart,
    FinishAttemptsRequest,
    Progress,
    Result,
    ResultAck,
    StartAttemptsRequest,
)
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from worker_sdk.backoff import Backoff
from worker_sdk.connection import Connection
from worker_sdk.error_details import api_error
from worker_sdk.errors import ConfigurationError
from worker_sdk.links import Links

Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[[WorkerServiceStub], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]

_TIMEOUT_S = 10.0

_log = logging.getLogger("worker_sdk")


class AttemptCalls:
    """Repeats each call until a node has answered it. Used in the event loop of the sessions."""

    def __init__(self, connection: Connection, links: Links, *, worker: str, incarnation: int) -> None:
        self._connection = connection
        self._links = links
        self._worker = worker
        self._incarnation = incarnation
        self._turn = itertools.count()

    async def start(self, attempts: Sequence[AttemptToStart]) -> Sequence[Assignment]:
        """Return those of the attempts that are the worker's now; the others never will be."""
        request = StartAttemptsRequest(
            namespace=self._connection.namespace,
            worker=self._worker,
            incarnation=self._incarnation,
            attempts=attempts,
        )
        return (await self._call(lambda stub: stub.StartAttempts, request)).started

    async def finish(self, results: Sequence[Result], progress: Sequence[Progress]) -> Sequence[ResultAck]:
        """Return the fate of results, stored after the latest progress of their attempts."""
        request = FinishAttemptsRequest(
            namespace=self._connection.namespace,
            worker=self._worker,
            incarnation=self._incarnation,
            results=results,
            progress=progress,
        )
        return (await self._call(lambda stub: stub.FinishAttempts, request)).acks

    async def _call(self, method: "Method[Request, Response]", request: Request) -> Response:
        backoff = Backoff()
        while True:
            sessions = self._links.live
            going_on = [session for session in sessions if not session.retiring] or sessions
            if going_on:
                session = going_on[next(self._turn) % len(going_on)]
                stub = WorkerServiceStub(session.channel)
                try:
                    return await method(stub)(request, timeout=_TIMEOUT_S, metadata=self._connection.metadata)
                except ConfigurationError as error:
                    # For example a file with the token that is being replaced.
                    _log.warning("no attempts can be taken: %s; trying again", error)
                except grpc.aio.AioRpcError as failure:
                    level = logging.WARNING if backoff.failures == 0 else logging.DEBUG
                    _log.log(level, "node %s took no attempts: %s; trying again", session.node, api_error(failure))
                except (asyncio.CancelledError, grpc.aio.UsageError):
                    # The session has ended, and its channel with it, unless it is this task that should end.
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
            await asyncio.sleep(backoff.next_delay_s())
