"""The `shardwheel` command in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "server.cli")
TIMEOUT_S = 60.0


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of a process: those of this one without any settings of Shardwheel, and the given ones.

    Nodes take a free HTTP port unless told otherwise: many run on this machine.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWHEEL_")}
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "proto" / "gen")])
    return {**kept, "PYTHONPATH": path, "SHARDWHEEL_HTTP_LISTEN": "127.0.0.1:0", **variables}


def shardwheel(
    *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**(variables or {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


class RunningCommand:
    """A command with its output in files, killed at the end of the test if it is still there."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        number = len(list(folder.glob("out-*")))
        self._out, self._err = folder / f"out-{number}", folder / f"err-{number}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, *arguments],
                cwd=folder,
                env=environment(**(variables or {})),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, text: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the text is in its output."""

        def there() -> bool:
            found = text in self.out or text in self.err
            assert found or self.process.poll() is None, f"ended with {self.process.returncode}: {self.out}{self.err}"
            return found

        wait_until(there, timeout_s=timeout_s, what=f"the output {text!r}")

    def stop(self, number: signal.Signals, *, timeout_s: float = TIMEOUT_S) -> float:
        """Send a signal and wait for the end; return how long that took, in seconds."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout_s)
        return time.monotonic() - began

    def family(self) -> list[psutil.Process]:
        """Return the process and everything below it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def kill(self) -> None:
        """Kill the process itself."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)


@contextmanager
def running(
    *arguments: str, folder: Path, variables: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[RunningCommand]:
    """A command that runs during the block."""
    command = RunningCommand(arguments, folder, variables, prefix)
    try:
        yield command
    finally:
        command.kill()


def alive(process: psutil.Process) -> bool:
    """Say whether a process runs; one that only waits for its parent to look at its exit code does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
