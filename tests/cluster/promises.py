"""The promises that a history can break, and how checkers say so."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.cluster.history import Execution, History


class Promise(StrEnum):
    """What can be broken."""

    LOST = "lost"
    """An answered job has not completed, or nothing shows that it ran."""
    STUCK = "stuck"
    """A job is not final, or ended other than completed."""
    STALE_ACCEPTED = "stale_accepted"
    """The result of a superseded claim was accepted."""
    DUPLICATE = "duplicate"
    """A job was executed again for no reason."""
    OVERLAP = "overlap"
    """Two valid executions of a job ran at the same time."""
    EARLY = "early"
    DOUBLE_FIRING = "double_firing"
    MISSED_FIRING = "missed_firing"
    KEY_EXCEEDED = "key_exceeded"
    """More jobs of a concurrency key ran than its limit."""
    DEDUPE = "dedupe"
    """One dedupe key made several jobs, or one submit did."""
    EPOCH = "epoch_violations"
    """A shard's epoch fell, or belongs to several incarnations, or somebody acted for a shard without owning it."""
    NO_STRIKE = "no_strike"
    """A fault that was to strike never did: the run proves nothing about it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    promise: Promise
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class Findings:
    """What one checker says."""

    violations: Sequence[Violation]
    numbers: Mapping[str, int]


def executions_by_job(history: History) -> dict[int, list[Execution]]:
    """Return the executions of each job, in the order of their claims."""
    found: dict[int, list[Execution]] = defaultdict(list)
    for one in history.executions:
        found[one.job].append(one)
    for executions in found.values():
        executions.sort(key=lambda one: (one.claim, one.started.mono))
    return found


def described(one: Execution) -> str:
    """Return an execution in words."""
    ended = "no end" if one.ended is None else f"{one.outcome} at {one.ended.mono:.3f}"
    where = f"{one.worker}[{one.pid}]"
    return (
        f"claim {one.claim} try {one.attempt} on {where} from {one.started.mono:.3f}"
        f" (claimed {one.claimed_at:.3f}), {ended}"
    )
