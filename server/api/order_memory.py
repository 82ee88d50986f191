"""What orders that came from other nodes led to.

A node that forwards an order and gets no answer in time forwards it again. By then it has been carried out, or is being
carried out, and finds nothing left to change: whoever gave it would read that nothing was moved. So an order that comes
again under the same number gets the answer of the first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

MAX_REMEMBERED: Final = 256

Response = TypeVar("Response")


class OrderMemory:
    """The latest orders of this process, by number. `limit_s` bounds how long one may take, whoever waits for it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._orders: dict[str, asyncio.Task[Any]] = {}

    async def once(self, number: str, work: Callable[[], Awaitable[Response]]) -> Response:
        """Return what `work` returned for this number, doing it if it was not done or failed. An order that nobody
        waits for any more is still carried out. Raises what `work` raises, and TimeoutError."""
        task: asyncio.Task[Response] | None = self._orders.get(number)
        if task is None:
            task = asyncio.create_task(self._bounded(work), name=f"order {number}")
            task.add_done_callback(lambda done: self._ended(number, done))
            self._orders[number] = task
            while len(self._orders) > MAX_REMEMBERED:
                del self._orders[next(iter(self._orders))]
        return await asyncio.shield(task)

    async def _bounded(self, work: Callable[[], Awaitable[Response]]) -> Response:
        async with asyncio.timeout(self._limit_s):
            return await work()

    def _ended(self, number: str, task: "asyncio.Task[Any]") -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._orders.get(number) is task:
            del self._orders[number]
