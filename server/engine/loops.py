"""How the engine's loops survive errors."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from server.engine.ports import OutcomeUnknown, StoreUnavailable

log = logging.getLogger(__name__)


class Backoff:
    """Growing pauses after failures: 0.05 s doubling to 2 s, with jitter; reset by a success."""

    def __init__(self, *, first_s: float = 0.05, limit_s: float = 2.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._failures = 0

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the latest success."""
        return self._failures

    def next_s(self) -> float:
        """Note a failure and return the pause after it, in seconds."""
        bound = min(self._limit_s, self._first_s * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return bound * random.uniform(0.5, 1.0)


async def every(
    interval_s: float,
    name: str,
    step: Callable[[], Awaitable[None]],
    *,
    wake: asyncio.Event | None = None,
    least_s: float = 0.0,
    back_off_limit_s: float = 2.0,
) -> None:
    """Run `step` for ever, `interval_s` apart, sooner when `wake` is set, but never less than `least_s` apart.

    A failing step is logged once per streak and kind of error, and tried again after up to `back_off_limit_s`, or
    `interval_s` if that is more.
    """
    backoff = Backoff(limit_s=back_off_limit_s)
    logged: type[Exception] | None = None
    while True:
        try:
            await step()
            backoff.reset()
            logged = None
            pause = interval_s
        except (StoreUnavailable, OutcomeUnknown) as error:
            if logged is not type(error):
                log.warning("loop waits for the database", extra={"loop": name, "error": str(error)})
            logged, pause = type(error), max(interval_s, backoff.next_s())
        except Exception as error:
            if logged is not type(error):
                log.exception("loop step failed", extra={"loop": name})
            logged, pause = type(error), max(interval_s, backoff.next_s())
        await asyncio.sleep(min(least_s, pause))
        await _pause(max(0.0, pause - least_s), wake)


async def _pause(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        pass
    wake.clear()
