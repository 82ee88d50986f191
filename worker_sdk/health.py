"""The health of a worker over HTTP, for the probes of an orchestrator.

It follows what the worker does: `/readyz` is green while a stream to a node is open, `/healthz` while the thread turns
that talks with the nodes. Answered by a thread of its own, so that a busy handler delays no probe.
"""

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import NamedTuple

from worker_sdk.errors import ConfigurationError

HEALTH_VARIABLE = "SHARDWHEEL_HEALTH_LISTEN"
"""Names the address at which a worker answers, if the program does not."""

# A probe that does not send its request for so long is hung up on.
_REQUEST_S = 5.0
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})")

_log = logging.getLogger("worker_sdk")


class Health(NamedTuple):
    """What a worker says of itself: whether it is alive and ready, and everything that a probe's body shows."""

    alive: bool
    ready: bool
    details: Mapping[str, object]


class HealthServer:
    """Answers at `address`, HOST:PORT or :PORT for all interfaces, from construction to `stop`.

    `look` is called for each probe, in any thread. Raises `ConfigurationError` if the address is malformed or taken.
    """

    def __init__(self, address: str, look: Callable[[], Health]) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"]) > 65535:
            raise ConfigurationError(f"health_listen: {address!r} is not HOST:PORT, for example :8081")
        host = match["host"].strip("[]")
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = kind((host, int(match["port"])), _handler(look))
        except OSError as error:
            raise ConfigurationError(
                f"health_listen: cannot listen on {address}: {error.strerror or error}; give another address"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="shardwheel-health", daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Listen, without asking the DNS for the name of this machine, which nobody needs here."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing on stderr about a prober that hangs up."""
        _log.debug("a probe broke off", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _handler(look: Callable[[], Health]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            health = look()
            verdicts = {"/healthz": ("alive", health.alive), "/readyz": ("ready", health.ready)}
            path = self.path.partition("?")[0]
            if path not in verdicts:
                self.send_error(404)
                return
            name, good = verdicts[path]
            body = json.dumps({name: good, **health.details}).encode() + b"\n"
            self.send_response(200 if good else 503)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: they are not logged."""

    return Handler
