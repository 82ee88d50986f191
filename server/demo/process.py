"""A process of the demo: started, watched, killed."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from server.demo import tether

_TAIL_BYTES: Final = 2000


class DemoProcess:
    """A Python process with its output in a file. It ends when the demo ends, even if that is killed."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Describe a process; `arguments` are those of the interpreter, `folder` is its working folder."""
        self.name = name
        self._arguments = list(arguments)
        self._environment = _clean_environment() | dict(environment)
        self._folder = folder
        self._output = folder / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._expected_to_run = False

    def start(self) -> None:
        """Start it, for the first time or again. To be called in the main thread: the child dies with the thread."""
        assert tether.__file__ is not None
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, tether.__file__, str(os.getpid()), sys.executable, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
                # A Ctrl-C is for the demo, which ends the others in order.
                start_new_session=True,
            )
        self._expected_to_run = True

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without having been killed."""
        return self._expected_to_run and self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill it (-9) and wait for its end; nothing happens if it does not run."""
        self._expected_to_run = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def output_tail(self) -> str:
        """Return the end of what it has printed."""
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def _clean_environment() -> dict[str, str]:
    # The user's own settings are for the user's own cluster. The path makes the child find the same packages.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWHEEL_")}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
