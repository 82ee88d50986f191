"""A small process that stops the server when the process which started it ends, however it ends.

Signals and exit handlers do not cover a kill -9 of the parent. The watchdog waits for the end of a pipe whose other
end only the parent holds.
"""

import subprocess
from pathlib import Path

# $1 postmaster's id, $2 its data, $3 a folder to remove afterwards, or nothing.
_SCRIPT = """
read -r line
[ "$(head -n 1 "$2/postmaster.pid" 2>/dev/null)" = "$1" ] || exit 0
kill -INT "$1" 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    kill -0 "$1" 2>/dev/null || break
    sleep 0.1
done
kill -QUIT "$1" 2>/dev/null && sleep 1
[ -z "$3" ] || rm -rf "$3"
"""
_STOP_TIMEOUT_S = 5.0


class Watchdog:
    """Watches over one run of a server; `cancel` it before stopping the server oneself."""

    def __init__(self, postmaster: int, pgdata: Path, *, remove: Path | None = None) -> None:
        """Start watching; `remove` names a folder to delete after the server was stopped for its parent's end."""
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", str(postmaster), str(pgdata), str(remove or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def cancel(self) -> None:
        """End the watchdog without touching the server."""
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
