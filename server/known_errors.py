"""Between loops, which know the errors of the engine, and work on the database, which has its own."""

from collections.abc import Awaitable, Callable

from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.store.errors import Unavailable, UnknownOutcome


def known_errors(work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return `work` with errors that a loop knows: it waits for an absent database without a traceback each time."""

    async def step() -> None:
        try:
            await work()
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error
        except UnknownOutcome as error:
            raise OutcomeUnknown(str(error)) from error

    return step
