"""Finishes attempts that came from topics: in calls of their own, many in one."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from shardwheel.v1.worker_service_pb2 import Progress, Result, ResultAck
from worker_sdk.attempt import Attempt
from worker_sdk.attempt_calls import AttemptCalls

STREAM = "kafka"
"""In place of the stream on which an attempt came."""

# Calls that are under way at a time: while one waits for its commit, another one can gather.
_CALLS = 2
_BATCH_RESULTS = 1000
# The usual limit of a gRPC message is 4 MiB; one result may be 1 MiB.
_BATCH_BYTES = 2 << 20
_PAUSE_S = 1.0

_log = logging.getLogger("worker_sdk")


class KafkaFinisher:
    """Implements `Finisher`. Used in the event loop of the sessions."""

    def __init__(
        self, calls: AttemptCalls, on_acks: Callable[[Sequence[ResultAck]], None], on_dropped: Callable[[Attempt], None]
    ) -> None:
        self._calls = calls
        self._on_acks = on_acks
        self._on_dropped = on_dropped
        self._waiting: deque[tuple[Result, bytes | None]] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def stream(self) -> str:
        """See `Finisher`."""
        return STREAM

    def start(self) -> None:
        """Begin to finish."""
        self._tasks = [asyncio.create_task(self._run(), name=f"kafka finisher {n}") for n in range(_CALLS)]

    def finish(self, result: Result, progress: bytes | None) -> None:
        """See `Finisher`."""
        self._waiting.append((result, progress))
        self._wake.set()

    def dropped(self, attempt: Attempt) -> None:
        """See `Finisher`."""
        self._on_dropped(attempt)

    async def close(self) -> None:
        """Finish nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            batch = self._batch()
            results = [result for result, _ in batch]
            progress = [Progress(attempt=one.attempt, data=data) for one, data in batch if data is not None]
            try:
                self._on_acks(await self._calls.finish(results, progress))
            except Exception:
                _log.exception("results could not be sent; trying again")
                self._waiting.extendleft(reversed(batch))
                await asyncio.sleep(_PAUSE_S)

    def _batch(self) -> list[tuple[Result, bytes | None]]:
        """Take what waits, as much as fits into a message."""
        batch: list[tuple[Result, bytes | None]] = []
        size = 0
        while self._waiting and len(batch) < _BATCH_RESULTS:
            result, data = self._waiting[0]
            size += result.ByteSize() + len(data or b"")
            if batch and size > _BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch
