"""A flag that tells a handler to stop, for threads and for asyncio alike."""

import asyncio
import threading

from worker_sdk.outcomes import CancelReason


class CancelSignal:
    """Set once, when the attempt has to stop; never unset. Safe to use from any thread and any event loop."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._reason: CancelReason | None = None
        self._seen = False

    @property
    def reason(self) -> CancelReason | None:
        """Why the attempt has to stop; None while it need not."""
        return self._reason

    @property
    def seen(self) -> bool:
        """Whether the handler has been told through this signal that it has to stop."""
        return self._seen

    def is_set(self) -> bool:
        """Return whether the attempt has to stop."""
        if self._reason is None:
            return False
        self._seen = True
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Block the thread until the attempt has to stop, at most `timeout` seconds; return whether it has to.

        A sync handler that sleeps with this instead of `time.sleep` stops at once.
        """
        self._event.wait(timeout)
        return self.is_set()

    async def wait_async(self) -> None:
        """Wait in asyncio until the attempt has to stop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._reason is None:
                future = loop.create_future()
                self._waiters.append((loop, future))
            else:
                future = None
        if future is not None:
            await future
        self._seen = True

    def set(self, reason: CancelReason) -> None:
        """Tell the handler to stop. Only the first reason counts."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            waiters, self._waiters = self._waiters, []
        self._event.set()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                # The waiter's loop is closed, and the waiter with it.
                pass


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
