"""Which incarnation of a node this process is, and which of its predecessors are surely dead.

A node that was killed and is started again at once would have to wait until its old session expires, for nobody can
tell from afar whether the old process lives. On the same host one can: the file in the node's data directory is locked
as long as the process lives, so whoever gets the lock knows that every incarnation recorded in it is dead.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from shard_manager.errors import DataDirInUse

_REMEMBERED: Final = 64
_RANDOM_BYTES: Final = 7
_MAX_DIGITS: Final = 18


class IncarnationFile:
    """The locked file. `current` is this process's incarnation, `replaces` those of dead predecessors, oldest first.

    The lock lasts until `close`, or until the process ends, however it ends. The directory must be on a local disk.
    """

    def __init__(self, path: Path) -> None:
        """Lock `path`, creating it and its directory if need be, and record a new incarnation.

        Raises `DataDirInUse` if a live process has it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise DataDirInUse(str(path)) from error
        self.replaces = tuple(self._recorded())
        self.current = int.from_bytes(os.urandom(_RANDOM_BYTES)) + 1
        self._record([*self.replaces, self.current][-_REMEMBERED:])

    def close(self) -> None:
        """Give up the lock: another process may now consider this one dead. Call it after the node has left."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _recorded(self) -> list[int]:
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).split(b"\n")
        # A line cut short by a crash proves nothing; at worst the node waits for its old session to expire.
        return [int(line) for line in lines[:-1] if line.isdigit() and len(line) <= _MAX_DIGITS]

    def _record(self, incarnations: list[int]) -> None:
        text = b"".join(b"%d\n" % incarnation for incarnation in incarnations)
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))
        os.fsync(self._file)
