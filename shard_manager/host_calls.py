"""Calls to the shard host: in order for each shard, each with a deadline, none of them able to stop the manager."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from shard_manager.coordinator import Lease
from shard_manager.host import ShardHost
from shard_manager.timings import ManagerTimings

logger = logging.getLogger(__name__)


class Outcomes(Protocol):
    """Where the outcome of a start or stop is told; called from the host's task, at most once per call."""

    def started(self, shard: int, epoch: int) -> None: ...
    def start_failed(self, shard: int) -> None: ...
    def stopped(self, shard: int) -> None: ...


class HostCalls:
    """Runs starts and stops as one task per shard; a graceful stop waits for the start, an immediate one cuts in."""

    def __init__(self, host: ShardHost, timings: ManagerTimings, outcomes: Outcomes) -> None:
        self._host = host
        self._timings = timings
        self._outcomes = outcomes
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, shard: int, epoch: int) -> None:
        """Start serving; tells `started` or `start_failed`."""
        self._follow(shard, lambda: self._start(shard, epoch), interrupt=False)

    def stop(self, shard: int, *, graceful: bool) -> None:
        """Stop serving; tells `stopped` in the end, whatever the host does, unless an immediate stop cuts in."""
        self._follow(shard, lambda: self._stop(shard, graceful), interrupt=not graceful)

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        """The host's `fence_in` with its deadline. Raises what the host raises, or TimeoutError."""
        async with asyncio.timeout(self._timings.fence_call.total_seconds()):
            return await self._host.fence_in(leases)

    async def released(self, shards: Sequence[int]) -> None:
        """Tell the host; its failure changes nothing."""
        try:
            async with asyncio.timeout(self._timings.stop_call.total_seconds()):
                await self._host.released(shards)
        except Exception:
            logger.exception("shard host failed to note a release", extra={"shards": list(shards)})

    async def settled(self) -> None:
        """Wait until no start or stop is running."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    def _follow(self, shard: int, work: Callable[[], Awaitable[None]], *, interrupt: bool) -> None:
        before = self._tasks.get(shard)
        if before is not None and interrupt:
            before.cancel()
        task = asyncio.create_task(self._after(before, work), name=f"shard-host-{shard}")
        self._tasks[shard] = task
        task.add_done_callback(lambda done: self._forget(shard, done))

    def _forget(self, shard: int, done: asyncio.Task[None]) -> None:
        if self._tasks.get(shard) is done:
            del self._tasks[shard]

    async def _after(self, before: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
        if before is not None:
            await asyncio.wait({before}, timeout=self._timings.stop_call.total_seconds())
        await work()

    async def _start(self, shard: int, epoch: int) -> None:
        try:
            async with asyncio.timeout(self._timings.start_call.total_seconds()):
                await self._host.start(shard, epoch)
        except Exception:
            logger.exception("shard host failed to start", extra={"shard": shard, "epoch": epoch})
            self._outcomes.start_failed(shard)
        else:
            self._outcomes.started(shard, epoch)

    async def _stop(self, shard: int, graceful: bool) -> None:
        for kindly in (True, False) if graceful else (False,):
            try:
                async with asyncio.timeout(self._timings.stop_call.total_seconds()):
                    await self._host.stop(shard, graceful=kindly)
                break
            except Exception:
                logger.exception("shard host failed to stop", extra={"shard": shard, "graceful": kindly})
        self._outcomes.stopped(shard)
