"""What the engines of a cluster's nodes tell each other, and the way in which they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from server.domain.due import DueJob
from server.domain.job import AttemptRef


@dataclass(frozen=True, slots=True)
class ScheduleChanged:
    """A schedule of a shard was created or changed, and fires next at this time, or not."""

    shard: int
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A consumer has started a published attempt, which ends at `timeout_at`, if that is set."""

    ref: AttemptRef
    worker_id: int
    timeout_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended. `final` says whether its job is final.

    With `key_told` the room that it leaves under its concurrency key is told of by `KeyFreed`; else the teller does not
    know the key.
    """

    ref: AttemptRef
    final: bool
    key_told: bool


@dataclass(frozen=True, slots=True)
class KeyFreed:
    """There is room for one more job under a concurrency key."""

    shard: int
    namespace_id: int
    key: str


@dataclass(frozen=True, slots=True)
class JobFinal:
    """A job is final."""

    job_id: int


@dataclass(frozen=True, slots=True)
class JobWatched:
    """The teller wants to hear of the end of a job."""

    job_id: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """The worker should stop an attempt; `reason` is "requested", "timeout" or "superseded"."""

    ref: AttemptRef
    worker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptAsked:
    """The teller cannot ask the worker whether it holds an attempt."""

    ref: AttemptRef
    worker_id: int


@dataclass(frozen=True, slots=True)
class AttemptDisclaimed:
    """The worker does not hold an attempt that was asked for, and refuses it from now on."""

    ref: AttemptRef


@dataclass(frozen=True, slots=True)
class HandlersChanged:
    """A handler was paused, resumed, or is to be dispatched in another way."""


# A DueJob says that the job is pending.
News: TypeAlias = (
    DueJob
    | ScheduleChanged
    | AttemptStarted
    | AttemptEnded
    | KeyFreed
    | JobFinal
    | JobWatched
    | StopAttempt
    | AttemptAsked
    | AttemptDisclaimed
    | HandlersChanged
)


class Peers(Protocol):
    """The other nodes. Nothing here blocks or fails; what cannot be told soon is dropped."""

    def tell_owner(self, shard: int, news: News) -> None:
        """Tell the node that should serve a shard, unless it is this one."""

    def tell_node(self, node: str, news: News) -> None:
        """Tell one node."""

    def tell_all(self, news: News) -> None:
        """Tell every other node."""


class NoPeers:
    """Implements `Peers` for a node without others."""

    def tell_owner(self, shard: int, news: News) -> None:
        """Tell nobody."""

    def tell_node(self, node: str, news: News) -> None:
        """Tell nobody."""

    def tell_all(self, news: News) -> None:
        """Tell nobody."""


class NewsSink(Protocol):
    """The receiving end of `Peers`."""

    def take(self, node: str, news: Sequence[News]) -> list[int]:
        """Take in what a node tells; return the watched jobs that it did not watch before."""
