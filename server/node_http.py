"""The HTTP port of a node: probes and metrics, answered from the first moment of the start to the last of the stop, and
the dashboard."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from server.config import OFF
from server.domain.errors import InvalidInput
from server.node_access import NodeAccess
from server.node_health import NodeHealth
from server.observe.loop_lag import LoopLag
from server.observe.metrics import Metrics
from server.web.dashboard import Dashboard
from server.web.late import LateApp
from server.web.probes import probes_app
from server.web.server import HttpServer

log = logging.getLogger(__name__)


class NodeHttp:
    """`start`, then `stop`. With `listen` off, only the event loop is watched."""

    def __init__(self, listen: str, health: NodeHealth, metrics: Metrics, lag: LoopLag, access: NodeAccess) -> None:
        self._listen = listen
        self._metrics = metrics
        self._lag = lag
        self._watch: asyncio.Task[None] | None = None
        self._dashboard = LateApp(lambda: health.waits_for or health.phase.value)
        self._server: HttpServer | None = None
        if listen != OFF:
            tls = access.certificates.https if access.certificates is not None else None
            self._server = HttpServer(probes_app(health, self._page, self._dashboard, access.gate), tls)
        self.address = ""
        """Where it listens, known once it has started; empty if it does not."""
        self.before_page: Callable[[], Awaitable[None]] = _nothing
        """Awaited before a page of metrics is made; must not raise."""

    async def start(self) -> None:
        """Answer. Raises `InvalidInput` if the address cannot be listened on."""
        self._watch = asyncio.create_task(self._lag.run(), name="event-loop-lag")
        if self._server is None:
            return
        try:
            port = self._server.bind(self._listen)
        except OSError as error:
            reason = (
                f"cannot be listened on: {error.strerror or error}; choose another port, or stop what listens there"
            )
            raise InvalidInput("http_listen", self._listen, reason) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        log.info("http port open", extra={"address": self.address})

    def show(self, dashboard: Dashboard) -> None:
        """Serve the dashboard from now on; until then its pages say that the node is starting."""
        self._dashboard.app = dashboard.app()

    async def stop(self) -> None:
        """Answer no more."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()

    async def _page(self, accept: str) -> tuple[bytes, str]:
        await self.before_page()
        return self._metrics.page(accept)


async def _nothing() -> None:
    return
