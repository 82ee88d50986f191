"""A small process that stops the server when the process which started it ends, however it ends.

Signals and exit handlers do not cover a kill -9 of the parent. The watchdog waits for the end of a pipe whose other
end only the parent holds.
"""

import subprocess
from pathlib import Path

# $1 the postmaster's id, $2 a folder to remove afterwards, or nothing. The name of the process is checked against the
# remote case that its number was given to another one; setpriv is what becomes postgres in the next instant.
_SCRIPT = """
read -r line
alive() {
    case "$(cat "/proc/$1/comm" 2>/dev/null)" in postgres | setpriv) ;; *) return 1 ;; esac
    ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null
}
alive "$1" && kill -INT "$1"
tries=0
while alive "$1" && [ "$tries" -lt 30 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
alive "$1" && kill -QUIT "$1" && sleep 1
[ -z "$2" ] || rm -rf "$2"
"""
_STOP_TIMEOUT_S = 5.0


class Watchdog:
    """Watches over one run of a server; `cancel` it before stopping the server oneself."""

    def __init__(self, postmaster: int, *, remove: Path | None = None) -> None:
        """Start watching; `remove` names a folder to delete after the server was stopped for its parent's end."""
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", str(postmaster), str(remove or "")],
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
