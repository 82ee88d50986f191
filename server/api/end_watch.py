"""Notices the end of jobs that end on other nodes.

Who ends a job tells the owner of its shard, and the owner tells the nodes that watch the job. A watch is asked for when
a wait begins; when the owner has confirmed it, the job is looked for once, for it may have ended before. Behind all
that one query, about once a second, asks for all jobs at once that are waited for on this node, and their watches are
repeated, so that a new owner learns of them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
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
    """Events that are set when a job is no longer live. For use from one event loop; runs only while needed.

    `watch` asks the owner of a job's shard to tell of its end.
    """

    def __init__(self, database: Database, *, watch: Callable[[int], None], interval_s: float = INTERVAL_S) -> None:
        self._database = database
        self._watch = watch
        self._interval_s = interval_s
        self._events: dict[int, set[asyncio.Event]] = {}
        self._count = 0
        self._soon: set[int] = set()
        self._asked = asyncio.Event()
        self._all_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    @contextmanager
    def watching(self, job_id: int) -> Iterator[asyncio.Event]:
        """Give an event that is set soon after the job has ended, within about a second at the latest."""
        event = asyncio.Event()
        self._events.setdefault(job_id, set()).add(event)
        self._count += 1
        if self._task is None:
            self._all_at = asyncio.get_running_loop().time() + self._interval_s
            self._task = asyncio.create_task(self._run(), name="end-watch")
        try:
            yield event
        finally:
            self._count -= 1
            waiting = self._events[job_id]
            waiting.discard(event)
            if not waiting:
                del self._events[job_id]

    def look_soon(self, job_ids: Iterable[int]) -> None:
        """Look for jobs now: from now on their end is told, but not what was before."""
        self._soon.update(job_id for job_id in job_ids if job_id in self._events)
        if self._soon:
            self._asked.set()

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._pause(failures)
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

    async def _pause(self, failures: int) -> None:
        """Wait for the time of the next look, or until some jobs should be looked for at once."""
        now = asyncio.get_running_loop().time()
        if failures:
            self._all_at = now + min(self._interval_s * 2**failures, MAX_BACK_OFF_S)
            await asyncio.sleep(self._all_at - now)
            return
        try:
            async with asyncio.timeout_at(max(self._all_at, now)):
                await self._asked.wait()
        except TimeoutError:
            pass

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        self._asked.clear()
        if now >= self._all_at:
            self._all_at = now + self._interval_s
            job_ids = list(self._events)
            for job_id in job_ids:
                self._watch(job_id)
        else:
            job_ids = list(self._soon)
        self._soon.clear()
        for start in range(0, len(job_ids), PAGE):
            for job_id in await gone(self._database, job_ids[start : start + PAGE]):
                for event in self._events.get(job_id, ()):
                    event.set()
