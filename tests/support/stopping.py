"""Processes that are stopped in their tracks."""

import os
import signal
import time
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 5.0


def stop_process(pid: int) -> None:
    """Stop a process (SIGSTOP), and return once each of its threads has stopped: until then it may still answer."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _TIMEOUT_S
    while any(_runs(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t")
    except (FileNotFoundError, ProcessLookupError):
        return False
