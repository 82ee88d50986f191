"""Handlers as the API shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandlerView:
    """The connected workers of a handler, as one node sees them.

    If its jobs are `published`, `slots` are those of the workers, and `free` says how many more may be published.
    """

    workers: int
    slots: int
    free: int
    published: bool = False
