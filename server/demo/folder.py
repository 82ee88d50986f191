"""A temporary folder that goes away with this process, however it ends."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

# Tried again for a while: a server in the folder may be about to stop.
_SCRIPT: Final = """
read -r line
tries=0
while [ -e "$1" ] && [ "$tries" -lt 100 ]; do
    rm -rf "$1" 2>/dev/null
    sleep 0.2
    tries=$((tries + 1))
done
"""


class RunFolder:
    """A folder to be used in `with`; its value is the path."""

    def __enter__(self) -> Path:
        """Make the folder, and a process that removes it at the end of this one."""
        self._path = Path(tempfile.mkdtemp(prefix="shardwheel-demo-"))
        # PostgreSQL may run under another account.
        self._path.chmod(0o755)
        self._janitor = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        return self._path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._janitor.kill()
        self._janitor.wait()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
