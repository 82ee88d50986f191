"""The file in which a worker records what it executes, and the lines in it.

A line is appended with one write, so it survives a kill of the process from that moment on. Many executions share one
fsync: whoever waits for `durable` is released by the first fsync that began after its lines were written.
"""

import asyncio
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

COMPLETED: Final = "completed"
# On a fast disk an fsync costs less than waking a thread for it, so it waits for company.
_GATHER_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A handler was entered. Instants are in seconds since 1970."""

    job: int
    claim: int
    attempt: int
    worker: str
    claimed_at: float
    """By the clock of the database."""
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The handler of the same job, claim and worker is about to return, or was stopped."""

    job: int
    claim: int
    worker: str
    ended_at: float
    outcome: str
    """`COMPLETED`, or the name of what stopped it."""


def parse_line(line: bytes) -> Start | End:
    """Return what a line says. Raises ValueError or TypeError for one that was not written by `ExecutionLog`."""
    record = orjson.loads(line)
    return End(**record) if "outcome" in record else Start(**record)


class ExecutionLog:
    """Appends to one file from one event loop; the fsyncs happen in a thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._waiting: list[asyncio.Future[None]] = []
        self._work = threading.Condition()
        threading.Thread(target=self._sync, name="execution-log", daemon=True).start()

    def write(self, record: Start | End) -> None:
        """Append a line."""
        os.write(self._file, orjson.dumps(asdict(record)) + b"\n")

    async def durable(self) -> None:
        """Return when everything written so far is on the disk."""
        future = asyncio.get_running_loop().create_future()
        with self._work:
            self._waiting.append(future)
            self._work.notify()
        await future

    def _sync(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._waiting)
            time.sleep(_GATHER_S)
            with self._work:
                group, self._waiting = self._waiting, []
            os.fsync(self._file)
            group[0].get_loop().call_soon_threadsafe(_release, group)


def _release(group: "list[asyncio.Future[None]]") -> None:
    for future in group:
        # A handler that was stopped does not wait any more.
        if not future.done():
            future.set_result(None)
