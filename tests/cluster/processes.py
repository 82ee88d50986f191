"""Real processes that can be killed, stopped and started again, and that write down what was done to them."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from server.demo.process import DemoProcess
from tests.cluster.journal import Journal
from tests.support.stopping import stop_process
from tests.support.waiting import eventually


class ClusterProcess(DemoProcess):
    """A node or a worker, in a session of its own. It dies with the test's process; its output stays in the folder.

    Starting, killing and stopping are written to the journal, each just before it is done. `start` is to be called in
    the main thread.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        journal: Journal,
        each_start: Callable[[int], Mapping[str, str]] = lambda number: {},
    ) -> None:
        """Describe a process; `each_start` adds to its environment by the number of the start, from 1 on."""
        super().__init__(name, arguments, environment, folder)
        self._each_start = each_start
        self.starts = 0
        self.kind = kind
        self._journal = journal
        self._output_before = 0
        self.leaving = False
        """Whether it was asked to stop: a second time would make it exit at once."""

    @property
    def running(self) -> bool:
        """Whether it is alive, stopped or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def output_file(self) -> Path:
        """The file with all that it has printed."""
        return self._output

    @property
    def output(self) -> str:
        """What it has printed since its latest start."""
        return self._output.read_bytes()[self._output_before :].decode(errors="replace")

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Add to its environment, from its next start on."""
        self._environment |= variables

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.running:
            self._output_before = self._output.stat().st_size if self._output.exists() else 0
            self.starts += 1
            self._environment |= self._each_start(self.starts)
            super().start()
            self.leaving = False
            self._note("started")

    def kill(self) -> None:
        """Kill it (-9) and wait for its end; nothing happens if it does not run."""
        if self.running:
            self._note("killed")
        super().kill()

    async def terminate(self, timeout_s: float) -> int:
        """Ask it to stop (SIGTERM), wait for its end and return its exit code."""
        process = self._process
        assert process is not None, f"{self.name} was never started"
        self._note("terminated")
        self._expected_to_run = False
        self.leaving = True
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: process.poll() is not None, timeout_s=timeout_s, what=f"the end of {self.name}")
        self._note("gone", process.pid)
        return process.returncode

    def pause(self) -> int:
        """Stop it (SIGSTOP) and return its process id, once it has really stopped."""
        pid = self.pid
        self._note("paused")
        stop_process(pid)
        return pid

    def resume(self, pid: int) -> None:
        """Let it go on (SIGCONT), if it is still the process that was stopped."""
        if self.running and self.pid == pid:
            os.kill(pid, signal.SIGCONT)
            self._note("resumed")

    def _note(self, event: str, pid: int | None = None) -> None:
        self._journal.write(event, kind=self.kind, process=self.name, pid=self.pid if pid is None else pid)
