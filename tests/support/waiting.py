"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_POLL_S = 0.01


class NotReached(AssertionError):
    """A condition did not come true in time."""


def wait_until(condition: Callable[[], object], *, timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Block until `condition()` is true; raise `NotReached` naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise NotReached(f"{what} was not reached within {timeout_s} s")
        time.sleep(_POLL_S)


async def eventually(
    condition: Callable[[], Awaitable[object] | object], *, timeout_s: float = 10.0, what: str = "the condition"
) -> None:
    """Wait until `condition()`, awaited if it is awaitable, is true; raise `NotReached` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return
        if time.monotonic() >= deadline:
            raise NotReached(f"{what} was not reached within {timeout_s} s")
        await asyncio.sleep(_POLL_S)
