"""Notices the end of jobs that end on other nodes.

The node that ends a job wakes those who wait for it there. For everyone else one query, about once a second, asks for
all jobs at once that are waited for on this node. It also catches whatever a wake-up missed.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from server.store.database import Database
from server.store.errors import StoreError
from server.store.jobs_read import gone

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
MAX_BACK_OFF_S: Final = 10.0
# Jobs asked for by one statement.
PAGE: Final = 1000


class EndWatch:
    """Events that are set when a job is no longer live. For use from one event loop; runs only while needed."""

    def __init__(self, database: Database, *, interval_s: float = INTERVAL_S) -> None:
        self._database = database
        self._interval_s = interval_s
        self._events: dict[int, set[asyncio.Event]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    @contextmanager
    def watching(self, job_id: int) -> Iterator[asyncio.Event]:
        """Give an event that is set within about a second after the job has ended."""
        event = asyncio.Event()
        self._events.setdefault(job_id, set()).add(event)
        self._count += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="end-watch")
        try:
            yield event
        finally:
            self._count -= 1
            waiting = self._events[job_id]
            waiting.discard(event)
            if not waiting:
                del self._events[job_id]

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(min(self._interval_s * 2**failures, MAX_BACK_OFF_S))
            if not self._events:
                self._task = None
                return
            try:
                await self._look()
                failures = 0
            except StoreError as error:
                if not failures:
                    log.warning("cannot look for ended jobs", extra={"error": str(error)})
                failures = min(failures + 1, 10)
            except Exception:
                if not failures:
                    log.exception("cannot look for ended jobs")
                failures = min(failures + 1, 10)

    async def _look(self) -> None:
        job_ids = list(self._events)
        for start in range(0, len(job_ids), PAGE):
            for job_id in await gone(self._database, job_ids[start : start + PAGE]):
                for event in self._events.get(job_id, ()):
                    event.set()
