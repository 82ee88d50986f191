"""What an earlier run may leave behind when it was killed: processes and a stale pid file."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from server.embedded.errors import EmbeddedPostgresError

_PROC = Path("/proc")
_POLL_S = 0.02


def server_processes(pgdata: Path) -> list[int]:
    """Return the ids of all processes of the server on `pgdata`: each of them has it as its working folder."""
    return list(_processes_in(pgdata.resolve()))


def end_processes(pgdata: Path, *, shutdown_grace_s: float = 30.0, orphan_grace_s: float = 2.0) -> None:
    """End what still runs on `pgdata`: a server by a fast shutdown, and after its time of grace by force.

    Back ends whose postmaster is gone end by themselves, unless they are stopped or busy. Killing them is safe, for
    the next start recovers from the log. Raises `EmbeddedPostgresError` if one cannot be ended.
    """
    running = server_processes(pgdata)
    if not running:
        return
    postmaster = recorded_pid(pgdata)
    grace_s = orphan_grace_s
    if postmaster in running:
        _signal(postmaster, signal.SIGINT)
        grace_s = shutdown_grace_s
    if not _wait_until_gone(pgdata, grace_s):
        kill_processes(pgdata)


def kill_processes(pgdata: Path, *, timeout_s: float = 10.0) -> None:
    """Kill all processes of the server on `pgdata`, and wait until they are gone.

    Raises `EmbeddedPostgresError` if one is still there after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    # A postmaster that is just being killed may still have started a process, hence more than one round.
    while running := server_processes(pgdata):
        if time.monotonic() >= deadline:
            pids = ", ".join(map(str, running))
            raise EmbeddedPostgresError(f"processes {pids} still use {pgdata} and cannot be ended; end them by hand")
        for pid in running:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def remove_stale_pid_file(pgdata: Path) -> None:
    """Remove a pid file whose number belongs to some other process by now; no server may be running.

    PostgreSQL itself recognises a number that is unused, but takes any living process for its predecessor.
    """
    pid = recorded_pid(pgdata)
    if pid is not None and (_PROC / str(pid)).exists():
        (pgdata / "postmaster.pid").unlink()


def recorded_pid(pgdata: Path) -> int | None:
    """Return the postmaster's id as its pid file gives it, or None."""
    lines = pid_file_lines(pgdata)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def pid_file_lines(pgdata: Path) -> list[str]:
    """Return the lines of the postmaster's pid file; none if there is no such file."""
    try:
        return [line.strip() for line in (pgdata / "postmaster.pid").read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []


def _processes_in(folder: Path) -> Iterator[int]:
    if not _PROC.is_dir():
        # Without /proc, PostgreSQL's own checks of its pid file and shared memory have to do.
        return
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # A zombie has no working folder any more, so an unreaped child does not count.
            if Path(os.readlink(entry / "cwd")) == folder and _is_postgres(entry):
                yield int(entry.name)
        except OSError:
            # The process has just ended, or belongs to another user.
            continue


def _is_postgres(entry: Path) -> bool:
    # A shell that someone opened in the folder is not ours to end.
    return (entry / "comm").read_text(encoding="utf-8").strip() == "postgres"


def _wait_until_gone(pgdata: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while server_processes(pgdata):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise EmbeddedPostgresError(
            f"process {pid} of another user runs a server on this data; ask that user to stop it"
        ) from error
