"""An HTTP server in the node's own event loop: a probe that is answered proves that the loop turns."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

log = logging.getLogger(__name__)

# Whoever opens more connections than this is answered 503: probes and scrapers need a handful.
MAX_CONNECTIONS: Final = 200
KEEP_ALIVE_S: Final = 15
# A stopping server gives answers under way so long.
GRACE_S: Final = 1


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, for signals are the node's business; `up` is set once it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class HttpServer:
    """`bind` it, `start` it, `stop` it; each once. `stop` may come at any time. With `tls` it speaks HTTPS alone."""

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._tls = tls
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def bind(self, address: str) -> int:
        """Listen on host:port and return the port; port 0 takes a free one. Raises OSError if that cannot be."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        [family, kind, protocol, _, place] = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        return int(listener.getsockname()[1])

    async def start(self) -> None:
        """Answer requests; returns once it does."""
        assert self._socket is not None, "bind comes first"
        config = uvicorn.Config(
            self._app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        config.load()
        # uvicorn itself would read certificates from files, once.
        config.ssl = self._tls
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")
        await self._server.up.wait()

    async def stop(self) -> None:
        """Take no new connections, finish the answers under way, and close."""
        server, serving = self._server, self._serving
        if server is not None and serving is not None:
            server.should_exit = True
            await asyncio.wait([serving], timeout=3 * GRACE_S)
            serving.cancel()
            [ended] = await asyncio.gather(serving, return_exceptions=True)
            if isinstance(ended, Exception):
                log.warning("the HTTP server did not stop cleanly", extra={"error": str(ended)})
        if self._socket is not None:
            self._socket.close()
