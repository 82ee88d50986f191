"""Folders for the data of servers that tests start."""

import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_NEEDED_BYTES = 4 * 1024**3


def make_folder(prefix: str) -> Path:
    """Make a folder that every account may pass through, and return it; the caller removes it.

    It lies in memory if there is plenty: creating a database means creating hundreds of files, which takes 30 ms there
    and up to a second on a disk. An explicit TMPDIR is respected.
    """
    in_memory = "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and _free_bytes(_MEMORY) >= _NEEDED_BYTES
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if in_memory else None))
    path.chmod(0o755)
    return path


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
