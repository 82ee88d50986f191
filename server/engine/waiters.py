"""Those who wait for the end of a job: callers on this node, and other nodes."""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Watcher(Protocol):
    """Told when a job may be final."""

    def notify(self) -> None:
        """Take note; may leave the waiters."""


class Waiter:
    """One caller's wait for one job."""

    def __init__(self, waiters: "Waiters", job_id: int) -> None:
        self._waiters = waiters
        self._job_id = job_id
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """Return True as soon as the job is known to be final, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Stop waiting."""
        self._waiters.leave(self._job_id, self)

    def notify(self) -> None:
        """Wake the caller."""
        self._event.set()


class Waiters:
    """Watchers by job."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[Watcher]] = {}

    def add(self, job_id: int) -> Waiter:
        """Return a new waiter for a job."""
        waiter = Waiter(self, job_id)
        self.join(job_id, waiter)
        return waiter

    def join(self, job_id: int, watcher: Watcher) -> None:
        """Tell a watcher of the end of a job."""
        self._waiting.setdefault(job_id, set()).add(watcher)

    def leave(self, job_id: int, watcher: Watcher) -> None:
        """Forget a watcher."""
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.discard(watcher)
            if not waiting:
                del self._waiting[job_id]

    def finished(self, job_ids: Iterable[int]) -> None:
        """Tell whoever waits for these jobs."""
        if not self._waiting:
            return
        for job_id in job_ids:
            for watcher in tuple(self._waiting.get(job_id, ())):
                watcher.notify()
