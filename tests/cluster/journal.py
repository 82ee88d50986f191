"""Files of JSON lines that survive a kill of their writer: the raw material of a history."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson

Line = dict[str, object]

# So many writers share one fsync as come along in this time.
_GATHER_S = 0.001


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """The same moment on this machine's two clocks, in seconds: the monotonic one decides on order and duration."""

    mono: float
    wall: float

    @classmethod
    def now(cls) -> Self:
        """Read both clocks."""
        return cls(time.monotonic(), time.time())


class Journal:
    """Appends lines to one file, from any thread. A line is in the kernel's hands when `write` returns."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it, to append to it."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._waiting: list[Future[None]] = []
        self._work = threading.Condition()
        threading.Thread(target=self._sync, name=f"journal {path.name}", daemon=True).start()

    def write(self, event: str, **fields: object) -> None:
        """Append a line with the present instant."""
        now = Instant.now()
        line = {"event": event, "mono": now.mono, "wall": now.wall, **fields}
        os.write(self._file, orjson.dumps(line) + b"\n")

    def durable(self) -> "Future[None]":
        """Return a future that is done once everything written so far is on the disk."""
        future: Future[None] = Future()
        # A waiter that gives up must not break the others.
        future.set_running_or_notify_cancel()
        with self._work:
            self._waiting.append(future)
            self._work.notify()
        return future

    def _sync(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._waiting)
            time.sleep(_GATHER_S)
            with self._work:
                group, self._waiting = self._waiting, []
            try:
                os.fsync(self._file)
            except OSError as error:
                for future in group:
                    future.set_exception(error)
                continue
            for future in group:
                future.set_result(None)


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a journal; one that was cut short by a kill is left out, an unreadable one is an error."""
    if not path.exists():
        return
    data = path.read_bytes()
    for raw in data[: data.rfind(b"\n") + 1].splitlines():
        line = orjson.loads(raw)
        if not isinstance(line, dict):
            raise ValueError(f"{path}: not an object: {raw!r}")
        yield line


def instant_of(line: Mapping[str, object]) -> Instant:
    """Return when a line was written."""
    return Instant(number(line, "mono"), number(line, "wall"))


def number(line: Mapping[str, object], name: str) -> float:
    """Return a field that is a number."""
    value = line[name]
    if not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number in {line}")
    return float(value)


def optional_number(line: Mapping[str, object], name: str) -> float | None:
    """Return a field that is a number or null."""
    return None if line.get(name) is None else number(line, name)


def whole(line: Mapping[str, object], name: str) -> int:
    """Return a field that is a whole number."""
    value = line[name]
    if not isinstance(value, int):
        raise ValueError(f"{name} is not a whole number in {line}")
    return value


def text(line: Mapping[str, object], name: str) -> str:
    """Return a field that is a text; empty if it is missing."""
    value = line.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text in {line}")
    return value
