"""A small disk for a PostgreSQL server, and a way to fill it up.

The disk is a tmpfs, which takes the right to mount: tests of it need root.
"""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.scratch import make_folder

MISSING: Final = "mounting a small disk needs root, and a container that may mount"
SETTINGS: Final = {"max_wal_size": "64MB", "min_wal_size": "32MB", "wal_recycle": "off", "wal_init_zero": "off"}
"""For a server on a small disk: it keeps no more room in reserve than it has to."""

_LARGEST: Final = 256 << 20


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """Mount an empty disk of this size; it is gone afterwards. Raises PermissionError with `MISSING`."""
    folder = make_folder("shardwheel-test-disk-")
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "shardwheel-test", str(folder)]
        try:
            finished = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=False)
        except FileNotFoundError as error:
            raise PermissionError(MISSING) from error
        if finished.returncode:
            raise PermissionError(f"{MISSING}: {finished.stderr.strip()}")
        try:
            yield folder
        finally:
            # Detached, so that a process that still looks at it cannot keep it in the way.
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Balloon:
    """A file that fills a disk up. WAL and tables share it: PostgreSQL refuses statements, or goes down altogether."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "balloon"

    def blow_up(self) -> None:
        """Leave not a byte on the disk."""
        size = _LARGEST
        with self._file.open("ab") as file:
            while size:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def burst(self) -> None:
        """Give the room back."""
        self._file.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """What is left on the disk."""
        status = os.statvfs(self._file.parent)
        return status.f_bavail * status.f_frsize
