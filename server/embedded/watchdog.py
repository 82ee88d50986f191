"""A small process that stops the server when the process which started it ends, however it ends.

Signals and exit handlers do not cover a kill -9 of the parent. The watchdog waits for the end of a pipe whose other
end only the parent holds.
"""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# $1 the server's id, $2 a folder to remove afterwards, or nothing, $3 the signal for one that does not go when asked,
# then the names that the process may have. They are checked against the remote case that its number was given to
# another one.
_SCRIPT = """
read -r line
pid=$1 folder=$2 hard=$3
shift 3
names=" $* "
alive() {
    name=$(cat "/proc/$pid/comm" 2>/dev/null) || return 1
    case "$names" in *" $name "*) ;; *) return 1 ;; esac
    ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null
}
alive && kill -INT "$pid"
tries=0
while alive && [ "$tries" -lt 30 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
alive && kill "-$hard" "$pid" && sleep 1
[ -z "$folder" ] || rm -rf "$folder"
"""
# setpriv is what becomes postgres in the next instant.
POSTGRES_NAMES: Final = ("postgres", "setpriv")
_STOP_TIMEOUT_S = 5.0


class Watchdog:
    """Watches over one run of a server; `cancel` it before stopping the server oneself."""

    def __init__(
        self,
        server: int,
        *,
        names: Sequence[str] = POSTGRES_NAMES,
        hard: signal.Signals = signal.SIGQUIT,
        remove: Path | None = None,
    ) -> None:
        """Start watching over the process with the id `server`, whose program has one of `names`.

        A server that SIGINT does not end within 3 s gets `hard`. `remove` names a folder to delete after the server was
        stopped for its parent's end.
        """
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", str(server), str(remove or ""), hard.name.removeprefix("SIG"), *names],
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
