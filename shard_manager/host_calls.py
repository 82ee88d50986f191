"""Calls to the shard host: in order for each shard, each with a deadline, none of them able to stop the manager."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

from shard_manager.coordinator import Lease
from shard_manager.host import ShardHost
from shard_manager.timings import ManagerTimings

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Outcomes(Protocol):
    """Where the outcome of a start or stop is told; called from the host's task, at most once per call."""

    def started(self, shard: int, epoch: int) -> None: ...
    def start_failed(self, shard: int) -> None: ...
    def stopped(self, shard: int) -> None: ...


class HostCalls:
    """Runs the starts and stops of each shard one after the other.

    A graceful stop waits for the start, `stop_call` at most; an immediate one cuts short whatever is under way.
    """

    def __init__(self, host: ShardHost, timings: ManagerTimings, outcomes: Outcomes) -> None:
        self._host = host
        self._timings = timings
        self._outcomes = outcomes
        # Of each shard what has not ended yet, oldest first.
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    def start(self, shard: int, epoch: int) -> None:
        """Start serving; tells `started` or `start_failed`."""
        self._follow(shard, lambda: self._start(shard, epoch), interrupt=False)

    def stop(self, shard: int, *, graceful: bool) -> None:
        """Stop serving; tells `stopped` in the end, whatever the host does, unless an immediate stop cuts in."""
        self._follow(shard, lambda: self._stop(shard, graceful), interrupt=not graceful)

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        """The host's `fence_in` with its deadline. Raises what the host raises, or TimeoutError."""
        return await _bounded(self._host.fence_in(leases), self._timings.fence_call)

    async def released(self, shards: Sequence[int]) -> None:
        """Tell the host; its failure changes nothing."""
        try:
            await _bounded(self._host.released(shards), self._timings.stop_call)
        except Exception:
            logger.exception("shard host failed to note a release", extra={"shards": list(shards)})

    async def settled(self) -> None:
        """Wait until no start or stop is running."""
        while self._tasks:
            await asyncio.wait([task for tasks in self._tasks.values() for task in tasks])

    def _follow(self, shard: int, work: Callable[[], Awaitable[None]], *, interrupt: bool) -> None:
        before = tuple(self._tasks.get(shard, ()))
        if interrupt:
            # All of them: the last may be a graceful stop that has not begun, and still waits for a start.
            for earlier in before:
                earlier.cancel()
        task = asyncio.create_task(self._after(shard, before, work), name=f"shard-host-{shard}")
        self._tasks.setdefault(shard, []).append(task)
        task.add_done_callback(lambda done: self._forget(shard, done))

    def _forget(self, shard: int, done: asyncio.Task[None]) -> None:
        self._tasks[shard].remove(done)
        if not self._tasks[shard]:
            del self._tasks[shard]

    async def _after(
        self, shard: int, before: Sequence[asyncio.Task[None]], work: Callable[[], Awaitable[None]]
    ) -> None:
        if before and (late := await self._ended(before)):
            for earlier in late:
                earlier.cancel()
            if await self._ended(late):
                logger.error("shard host goes on with a call that was cancelled", extra={"shard": shard})
        await work()

    async def _ended(self, tasks: Collection[asyncio.Task[None]]) -> Collection[asyncio.Task[None]]:
        """Wait for `tasks` as long as a stop may take; return those that have not ended then."""
        _, late = await asyncio.wait(tasks, timeout=self._timings.stop_call.total_seconds())
        return late

    async def _start(self, shard: int, epoch: int) -> None:
        try:
            await _bounded(self._host.start(shard, epoch), self._timings.start_call)
        except Exception:
            logger.exception("shard host failed to start", extra={"shard": shard, "epoch": epoch})
            self._outcomes.start_failed(shard)
        else:
            self._outcomes.started(shard, epoch)

    async def _stop(self, shard: int, graceful: bool) -> None:
        for kindly in (True, False) if graceful else (False,):
            try:
                await _bounded(self._host.stop(shard, graceful=kindly), self._timings.stop_call)
                break
            except Exception:
                logger.exception("shard host failed to stop", extra={"shard": shard, "graceful": kindly})
        self._outcomes.stopped(shard)


async def _bounded(call: Awaitable[T], limit: timedelta) -> T:
    """Await a call of the host with a deadline.

    A cancellation that nobody asked of this task comes from within the host and is a failure like any other: passed on,
    it would end the task without a word, and the shard would be starting or stopping for ever.
    """
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the call was cancelled from within the shard host") from error
