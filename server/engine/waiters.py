"""Callers who wait for the end of a job on this node."""

import asyncio
from collections.abc import Iterable


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
        self._waiters.remove(self._job_id, self)

    def notify(self) -> None:
        """Wake the caller."""
        self._event.set()


class Waiters:
    """Waiters by job."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[Waiter]] = {}

    def add(self, job_id: int) -> Waiter:
        """Return a new waiter for a job."""
        waiter = Waiter(self, job_id)
        self._waiting.setdefault(job_id, set()).add(waiter)
        return waiter

    def remove(self, job_id: int, waiter: Waiter) -> None:
        """Forget a waiter."""
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.discard(waiter)
            if not waiting:
                del self._waiting[job_id]

    def finished(self, job_ids: Iterable[int]) -> None:
        """Wake whoever waits for these jobs."""
        if not self._waiting:
            return
        for job_id in job_ids:
            for waiter in self._waiting.get(job_id, ()):
                waiter.notify()
