"""News on its way to one node.

One message is under way at a time; what comes up meanwhile goes with the next, so a burst costs few messages. The queue
is bounded and what does not fit is dropped, as is what a node did not take: news is only worth anything while it is
fresh, and the sweeps find the rest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc.aio

from server.engine.loops import Backoff
from server.engine.ports_peers import News
from server.peers.channels import UnknownPeer

log = logging.getLogger(__name__)

MAX_WAITING: Final = 20_000
MAX_BATCH: Final = 2_000


class Outbox:
    """News for one node; see the module. `send` carries one batch.

    The outbox runs a task only while there is something to tell.
    """

    def __init__(
        self, node: str, send: Callable[[str, Sequence[News]], Awaitable[None]], *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._node = node
        self._send = send
        self._max_waiting = max_waiting
        self._waiting: deque[News] = deque()
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff()
        self.sent = 0
        self.dropped = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell."""
        return self._task is None

    def put(self, news: News) -> None:
        """Tell soon, or not at all if too much waits already."""
        if len(self._waiting) >= self._max_waiting:
            self.dropped += 1
            return
        self._waiting.append(news)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"tell-{self._node}")

    async def close(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
                if (pause := await self._deliver(batch)) is not None:
                    await asyncio.sleep(pause)
        finally:
            self._task = None

    async def _deliver(self, batch: Sequence[News]) -> float | None:
        """Send a batch; return how long to wait before the next one if it was not taken."""
        try:
            await self._send(self._node, batch)
        except UnknownPeer:
            # It has left: its shards go to others, which look for themselves when they start them.
            self.dropped += len(batch) + len(self._waiting)
            self._waiting.clear()
            return None
        except grpc.aio.AioRpcError as error:
            self._failed(f"{error.code().name}: {error.details()}", None)
        except Exception as error:
            self._failed(str(error), error)
        else:
            self.sent += len(batch)
            self._backoff.reset()
            return None
        self.dropped += len(batch)
        return self._backoff.next_s()

    def _failed(self, reason: str, error: Exception | None) -> None:
        if not self._backoff.failures:
            extra = {"peer": self._node, "error": reason}
            log.warning("a node does not hear what this one tells it", extra=extra, exc_info=error)
