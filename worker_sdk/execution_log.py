"""A middleware that writes every execution to a file, as the independent record of what has run.

One JSON object per line: `{"event": "start" | "end", "job": …, "attempt": …, "claim": …, "worker": …, "handler": …,
"at": seconds since 1970, "due_at": seconds or null}`; an end also has `"outcome"`: "returned" or an exception's class.
A line is in the kernel's hands before the handler is called, so it survives a kill of the process; it is on the disk at
the latest 50 ms afterwards. Several processes may write to one file.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from worker_sdk.context import Context

EXECUTION_LOG_VARIABLE = "SHARDWHEEL_EXECUTION_LOG"
"""Names the file; a worker that finds it in its environment writes the log."""

_SYNC_S = 0.05

_log = logging.getLogger("worker_sdk")


class ExecutionLog:
    """Writes to one file, from any thread. Give it to `Worker(middleware=…)`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file, or create it, to append to it."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._written = threading.Event()
        threading.Thread(target=self._sync, name="shardwheel-execution-log", daemon=True).start()

    def __call__(self, context: Context) -> AbstractContextManager[None]:
        """Return the context manager around one execution."""
        return self._around(context)

    @contextmanager
    def _around(self, context: Context) -> Iterator[None]:
        due_at = context.due_at
        record = {
            "job": context.job_id,
            "attempt": context.attempt,
            "claim": context.claim,
            "worker": context.worker,
            "handler": context.handler,
            "due_at": None if due_at is None else due_at.timestamp(),
        }
        self._write({"event": "start", "at": time.time(), **record})
        outcome = "returned"
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self._write({"event": "end", "at": time.time(), **record, "outcome": outcome})

    def _write(self, record: dict[str, object]) -> None:
        # One call: lines of several processes in one file do not mix.
        os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._written.set()

    def _sync(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            try:
                os.fsync(self._file)
            except OSError:
                _log.exception("the execution log cannot be synced to disk")
            time.sleep(_SYNC_S)
