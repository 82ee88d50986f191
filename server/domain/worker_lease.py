"""What the database answers about the leases of workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether an incarnation of a worker was let in."""

    worker_id: int | None
    """Id of the incarnation's row; None if it was not let in."""
    heard: bool = False
    """This node hears another incarnation of the name."""
    leased: bool = False
    """The lease of another incarnation runs without a doubt."""
    undecided: bool = False
    """There is a young doubt about another incarnation: whether it lives will show shortly."""
    superseded: Sequence[int] = field(default_factory=list)
    """Ids of older incarnations that have ended with this."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A round of renewals."""

    now: datetime
    """The database clock."""
    ended: Sequence[int]
    """Ids of those workers that have ended: their lease cannot be renewed any more."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of workers in doubt."""

    lost: Sequence[int]
    """Ids of those that were given up."""
    in_doubt: Sequence[int]
    """Ids of all whose doubt still stands, the lost ones included."""
