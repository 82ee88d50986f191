"""Handlers as the API shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlerView:
    """The connected workers of a handler, as one node sees them."""

    workers: int
    slots: int
    free: int
