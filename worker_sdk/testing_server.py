"""A whole server for tests: a PostgreSQL and a node in child processes, with nothing to set up."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from worker_sdk.client import Client
from worker_sdk.durations import Span, as_seconds
from worker_sdk.errors import ConfigurationError, ShardwheelError
from worker_sdk.worker import Worker

_POLL_S = 0.02
_CONNECT_S = 30.0
_STOP_S = 30.0


class ServerNotStarted(ShardwheelError):
    """The server has ended instead of starting, or took too long; the message has its last words."""


class LocalServer:
    """A server of its own on free ports of this machine; `with` starts and stops it.

    ::

        with LocalServer() as server, server.running(worker):
            job = send_email.submit({"to": "you@example.org"})
            assert server.client().wait(job.job_id, timeout=30).result_json() == "sent"

    A start takes a few seconds, so share one server between tests, and keep them apart by `server.client(namespace=…)`
    or by handlers. It runs the `shardwheel` of this Python, which has to be installed with its extra "embedded". It
    ends with the process that started it, however that ends; `stop` removes its data as well.
    """

    def __init__(self, *, data_dir: str | os.PathLike[str] | None = None, start_timeout: Span = 120) -> None:
        """Describe a server. Data are kept in `data_dir` over restarts; left out, a temporary folder is used.

        Raises `ConfigurationError` if the server is not installed.
        """
        if importlib.util.find_spec("server") is None:
            raise ConfigurationError("LocalServer: install the server too: pip install 'shardwheel[embedded]'")
        self._start_timeout_s = as_seconds(start_timeout, "start_timeout")
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self.address = ""
        """Where the server listens, `host:port`, once it has started."""
        self.database = ""
        """URI of its PostgreSQL, as the role that owns the schema."""

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def start(self) -> None:
        """Start the server and return when it serves. Raises `ServerNotStarted`."""
        if self._process is not None:
            raise RuntimeError("the server runs already")
        self._folder = Path(tempfile.mkdtemp(prefix="shardwheel-"))
        # PostgreSQL runs under another account if this is root's.
        self._folder.chmod(0o755)
        ready, log = self._folder / "ready.json", self._folder / "log"
        command = [sys.executable, "-m", "server.cli", "dev", "--port", "0", "--until-stdin-ends"]
        command += ["--data-dir", str(self._data_dir or self._folder / "data"), "--ready-file", str(ready)]
        own = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWHEEL_")}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**own, "SHARDWHEEL_HTTP_LISTEN": "off"},
                # Ctrl-C is for the tests; what they leave is stopped then.
                start_new_session=True,
            )
        try:
            self._wait_ready(self._process, ready, log)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove what it left, but for a `data_dir` that was given."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def client(self, *, namespace: str | None = None) -> Client:
        """Return a client; it is closed with the server."""
        client = Client(self.address, namespace=namespace)
        self._clients.append(client)
        return client

    @contextlib.contextmanager
    def running(self, worker: Worker) -> Iterator[Worker]:
        """Run a worker against the server, in threads of this process; what runs at the end is given back."""
        worker.configure(address=self.address)
        worker.start()
        try:
            if not worker.wait_connected(_CONNECT_S):
                raise ServerNotStarted(f"worker {worker.name!r} was not welcomed within {_CONNECT_S:g} s")
            yield worker
        finally:
            worker.stop(grace=0)

    def _wait_ready(self, process: "subprocess.Popen[bytes]", ready: Path, log: Path) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not ready.exists():
            ended = process.poll() is not None
            if ended or time.monotonic() >= deadline:
                how = "ended" if ended else f"was not ready within {self._start_timeout_s:g} s"
                words = log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
                raise ServerNotStarted(f"the server {how}: {words}")
            time.sleep(_POLL_S)
        told = json.loads(ready.read_text(encoding="utf-8"))
        self.address, self.database = told["address"], told["database"]
