"""A pipe that processes write to and of which the end is kept."""

import asyncio
import os
import re
from types import TracebackType
from typing import Final, Self

_READ_BYTES: Final = 64 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class OutputPipe:
    """A context manager; reads on the running event loop as output comes, so no writer is ever held up for long.

    `write_end` is the descriptor for the processes; `count` the number of bytes so far, of which the last `limit` are
    kept.
    """

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._kept = bytearray()
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()

    def __enter__(self) -> Self:
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_write_end()
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)

    def close_write_end(self) -> None:
        """Close our copy of the write end, so that the pipe ends with the last process that holds one."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def read_to_the_end(self, patience_s: float) -> None:
        """Wait until no process holds the pipe any more, at most `patience_s` seconds."""
        try:
            async with asyncio.timeout(patience_s):
                await self._ended.wait()
        except TimeoutError:
            pass  # somebody in the background keeps it; what came so far is the output

    def text(self) -> str:
        """Return what is kept as text: broken UTF-8 and control characters, save tabs and line ends, are replaced.

        As JSON it takes at most three times the limit, where control characters as they are would take six times.
        """
        decoded = self._kept[-self._limit :].decode("utf-8", "replace")
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", decoded)

    def _read(self) -> None:
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._read_end)
            self._ended.set()
            return
        self.count += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]
