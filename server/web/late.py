"""An application that is there before it can serve."""

from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

RETRY_S = 2


class LateApp:
    """Answers 503 with what the node waits for, in words, until `app` is set. A browser tries again by itself."""

    def __init__(self, waits_for: Callable[[], str]) -> None:
        self._waits_for = waits_for
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        headers = {"refresh": str(RETRY_S), "retry-after": str(RETRY_S), "cache-control": "no-store"}
        response = PlainTextResponse(f"This node is not ready: {self._waits_for()}\n", status_code=503, headers=headers)
        await response(scope, receive, send)
