"""The worker's side of the watchdog process; see `worker_sdk._heartbeat`."""

import base64
import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from shardwheel.v1.worker_service_pb2 import KeepAliveRequest
from worker_sdk import _heartbeat
from worker_sdk.connection import Connection

_RESTART_S = 10.0

_log = logging.getLogger("worker_sdk")


class Lifeline:
    """Starts the watchdog, tells it what to do, and gives it signs of life. Used in one thread; never blocks for long.

    Where it cannot be started, or there is no /proc to look at, the worker runs without it, and loses its lease if
    native code holds the interpreter's lock for longer than that.
    """

    def __init__(self, connection: Connection, *, worker: str, incarnation: int, limit_s: float) -> None:
        self._connection = connection
        self._request = KeepAliveRequest(namespace=connection.namespace, worker=worker, incarnation=incarnation)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -_RESTART_S
        self._orders = b""

    def start(self) -> None:
        """Start the process."""
        self._started_at = time.monotonic()
        if not os.path.exists("/proc/self/stat"):
            return
        # As a file, not as a module: importing the package would cost the child what it can do without.
        command = [sys.executable, "-P", _heartbeat.__file__, str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, bufsize=0
            )
        except (OSError, ValueError) as error:
            _log.warning("the watchdog process cannot be started, going on without it: %s", error)
            return
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._send(self._orders)

    @property
    def process_id(self) -> int | None:
        """Id of the process, None if there is none."""
        return None if self._process is None else self._process.pid

    def order(self, addresses: Sequence[str], interval_s: float) -> None:
        """Tell the watchdog where the nodes are and how often to renew. Before the first order it renews nothing."""
        tls = self._connection.tls
        pem = tls.read() if tls is not None else None
        orders = _heartbeat.Orders(
            interval_s=interval_s,
            limit_s=self._limit_s,
            request=base64.b64encode(self._request.SerializeToString()).decode(),
            addresses=list(addresses),
            metadata=[list(pair) for pair in self._connection.metadata],
            tls=pem is not None,
            ca=None if pem is None else _text(pem.ca),
            cert=None if pem is None else _text(pem.cert),
            key=None if pem is None else _text(pem.key),
        )
        line = json.dumps(dataclasses.asdict(orders)).encode() + b"\n"
        if line != self._orders:
            self._orders = line
            self._send(line)

    def beat(self) -> None:
        """Give a sign of life, and start the process again if it has died."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            if time.monotonic() - self._started_at > _RESTART_S:
                _log.warning("the watchdog process has ended, starting it again")
                self.stop()
                self.start()
            return
        self._send(b"{}\n")

    def stop(self) -> None:
        """End the process: the lease is not renewed any more."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None or not line:
            return
        try:
            if self._process.stdin.write(line) != len(line):
                # Half a line is of no use, and the next one would not be either.
                self._process.kill()
        except (BlockingIOError, BrokenPipeError):
            # Full: it is stopped, and has enough signs of life. Broken: the next beat starts it again.
            pass


def _text(pem: bytes | None) -> str | None:
    return None if pem is None else pem.decode()
