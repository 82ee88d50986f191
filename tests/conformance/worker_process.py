"""The worker under test, as a process."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from server.demo import tether
from tests.support.waiting import eventually

_TAIL_BYTES = 2000


class WorkerProcess:
    """A command that ends with this process, even if that is killed. Its output goes to a file."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        """Describe the process; the program is looked up in the PATH. Raises `FileNotFoundError` if there is none."""
        program = shutil.which(command[0])
        if program is None:
            raise FileNotFoundError(f"there is no program {command[0]!r}; write a path, or a name that is in the PATH")
        self._command = [os.path.abspath(program), *command[1:]]
        self._output = output
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, variables: Mapping[str, str]) -> None:
        """Start it, with these variables beside the environment's own, less those that name a cluster."""
        assert tether.__file__ is not None
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWHEEL_")}
        with self._output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, tether.__file__, str(os.getpid()), *self._command,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=inherited | dict(variables),
            )  # fmt: skip

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        assert self._process is not None, "the worker was not started"
        return self._process.returncode

    def terminate(self) -> None:
        """Ask it to stop."""
        assert self._process is not None, "the worker was not started"
        self._process.send_signal(signal.SIGTERM)

    async def ended(self, timeout_s: float) -> int:
        """Wait for its end and return its exit code."""
        await eventually(lambda: self.exit_code is not None, timeout_s=timeout_s, what="the end of the worker")
        assert self.exit_code is not None
        return self.exit_code

    async def kill(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def output_tail(self) -> str:
        """Return the end of what it has printed."""
        return self._output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace") if self._output.exists() else ""
