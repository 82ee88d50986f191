"""Who makes the call that is being answered."""

from contextvars import ContextVar
from typing import Final

from server.domain.access import Principal

_NOBODY: Final = Principal()
CALLER: Final[ContextVar[Principal]] = ContextVar("caller", default=_NOBODY)
"""Set for each call before the service sees it; each call is a task of its own."""
