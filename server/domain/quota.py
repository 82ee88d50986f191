"""Quotas of a namespace: how much it may have, and how fast it may ask for more."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Limits; None is none."""

    pending_jobs: int | None = None
    """Jobs that wait, those of schedules included."""
    pending_bytes: int | None = None
    """Their payloads in all."""
    submit_rate: float | None = None
    """Jobs submitted per second, all nodes together."""
    schedules: int | None = None


NO_QUOTAS: Final = Quotas()


def to_document(quotas: Quotas) -> str:
    """Return the JSON form in which quotas are stored: those that are set."""
    given = {one.name: value for one in fields(quotas) if (value := getattr(quotas, one.name)) is not None}
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def from_document(document: bytes) -> Quotas:
    """Read the form of `to_document`; fields of a newer version are passed over."""
    found = json.loads(document)
    if not isinstance(found, Mapping):
        raise ValueError("a document of quotas has to be a JSON object")
    known = {one.name for one in fields(Quotas)}
    quotas = Quotas(**{name: value for name, value in found.items() if name in known})
    return NO_QUOTAS if quotas == NO_QUOTAS else quotas


class RateBucket:
    """Holds the submits of one namespace through one node to a rate, on average over about a second.

    A batch is let in as a whole while the bucket is not empty, whatever its size, and what it takes too much is paid
    back before the next one. All times are monotonic seconds.
    """

    BURST_S: Final = 1.0

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._level = self._most
        self._at_s = now_s
        self.taken = 0
        """Jobs let in since it was made."""

    @property
    def _most(self) -> float:
        return max(1.0, self._rate * self.BURST_S)

    def set_rate(self, rate: float, now_s: float) -> None:
        """Go on with another rate."""
        self._fill(now_s)
        self._rate = rate
        self._level = min(self._level, self._most)

    def take(self, jobs: int, now_s: float) -> float:
        """Let jobs in and return 0, or let none in and return after how many seconds that may be tried again."""
        self._fill(now_s)
        if self._level < 1.0:
            return (1.0 - self._level) / self._rate
        self._level -= jobs
        self.taken += jobs
        return 0.0

    def _fill(self, now_s: float) -> None:
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s


def share(rate: float, nodes: int, of_others: float) -> float:
    """Return this node's part of a namespace's rate: what the others leave, at least an equal part of it."""
    return max(rate / max(1, nodes), rate - of_others)


UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Room:
    """How much may still be added to what is pending."""

    jobs: int = UNLIMITED
    size: int = UNLIMITED

    @classmethod
    def left(cls, quotas: Quotas, jobs: int, size: int) -> "Room":
        """Return what is left by quotas when so many jobs of so many bytes are pending."""
        return cls(
            UNLIMITED if quotas.pending_jobs is None else quotas.pending_jobs - jobs,
            UNLIMITED if quotas.pending_bytes is None else quotas.pending_bytes - size,
        )

    def holds(self, jobs: int, size: int) -> bool:
        """Whether so much fits."""
        return jobs <= self.jobs and size <= self.size

    def without(self, jobs: int, size: int) -> "Room":
        """Return what is left when so much has been added."""
        return Room(self.jobs - jobs, self.size - size)

    def part(self, nodes: int) -> "Room":
        """Return the part of one of several nodes, none of which knows what the others add."""
        return Room(self.jobs // max(1, nodes), self.size // max(1, nodes))


NO_ROOM: Final = Room(0, 0)
