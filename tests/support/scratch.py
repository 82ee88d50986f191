"""Folders for the data of servers that tests start."""

import os
import shutil
import tempfile
import time
from pathlib import Path

_MEMORY = Path("/dev/shm")
_NEEDED_BYTES = 4 * 1024**3
_REMOVED_WITHIN_S = 30.0


def make_folder(prefix: str) -> Path:
    """Make a folder that every account may pass through, and return it; the caller removes it.

    It lies in memory if there is plenty: creating a database means creating hundreds of files, which takes 30 ms there
    and up to a second on a disk. An explicit TMPDIR is respected.
    """
    in_memory = "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and _free_bytes(_MEMORY) >= _NEEDED_BYTES
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if in_memory else None))
    path.chmod(0o755)
    return path


def remove_folder(path: Path) -> None:
    """Remove a folder, also one in which a server that was told to end is still writing its last files.

    Raises what stands in the way for longer than that takes.
    """
    deadline = time.monotonic() + _REMOVED_WITHIN_S
    while path.exists():
        try:
            shutil.rmtree(path)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
