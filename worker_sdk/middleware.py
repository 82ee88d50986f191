"""Code that runs around every execution of a handler."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack

from worker_sdk.context import Context
from worker_sdk.errors import ConfigurationError

Middleware = Callable[[Context], AbstractContextManager[object] | AbstractAsyncContextManager[object]]
"""Makes a context manager that is entered before the handler is called and left after it, in the handler's own thread
or event loop. It sees the handler's exceptions, and may raise others in their place. An async context manager works
for async handlers only."""


def enter_all(middleware: tuple[Middleware, ...], context: Context, stack: ExitStack) -> None:
    """Enter the context managers of all middleware, the first one outermost, around a sync handler."""
    for make in middleware:
        manager = make(context)
        if not isinstance(manager, AbstractContextManager):
            raise ConfigurationError(
                f"middleware {make!r} gives no sync context manager, which the sync handler {context.handler!r} needs"
            )
        stack.enter_context(manager)


async def enter_all_async(middleware: tuple[Middleware, ...], context: Context, stack: AsyncExitStack) -> None:
    """Enter the context managers of all middleware, the first one outermost, around an async handler."""
    for make in middleware:
        manager = make(context)
        if isinstance(manager, AbstractAsyncContextManager):
            await stack.enter_async_context(manager)
        else:
            stack.enter_context(manager)
