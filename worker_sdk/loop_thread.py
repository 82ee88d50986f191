"""An event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs an event loop in a daemon thread from construction to `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        """Identity of the thread, for looking at its stack."""
        return self._thread.ident

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def call(self, work: Coroutine[object, object, Result]) -> Result:
        """Run a coroutine in the loop and return its result. Raises `RuntimeError` in the loop's own thread.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
        """
        if threading.get_ident() == self.ident:
            work.close()
            raise RuntimeError("this would wait for itself: the call comes from the event loop that has to do the work")
        future = self.spawn(work)
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            future.cancel()
            raise
        except CancelledError as error:
            raise RuntimeError("the loop was stopped during the call") from error

    def spawn(self, work: Coroutine[object, object, Result]) -> "Future[Result]":
        """Start a coroutine in the loop. Raises `RuntimeError` after `stop`."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Cancel what still runs in the loop and end the thread. Returns whether it ended within `timeout_s`."""
        if self._thread.is_alive() and not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self.loop.stop)
            except RuntimeError:
                # Closed in between.
                return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=2.0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
