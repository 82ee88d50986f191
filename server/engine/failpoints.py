"""Named points at which tests can hold the engine; in production they do nothing."""

from collections.abc import Awaitable, Callable


class Failpoints:
    """Actions by name of the point. Points: `claim.committed`, `reap.selected`, `fire.selected`."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[], Awaitable[None]]] = {}

    def set(self, name: str, action: Callable[[], Awaitable[None]] | None) -> None:
        """Run `action` whenever the point is reached; None removes it."""
        if action is None:
            self._actions.pop(name, None)
        else:
            self._actions[name] = action

    async def reach(self, name: str) -> None:
        """Run what is set for the point."""
        action = self._actions.get(name)
        if action is not None:
            await action()
