"""What can be wrong with a database or a cluster: findings, and the facts that they are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How bad a finding is."""

    INFO = 1
    """Good to know."""
    WARNING = 2
    """Costs speed or safety, or soon will."""
    CRITICAL = 3
    """Jobs do not run, or may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be: what is wrong, and what to do about it. `subject` is what it is about."""

    severity: Severity
    check: str
    subject: str = ""
    summary: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """What PostgreSQL is set to, as a session of the nodes' role sees it; names as PostgreSQL has them.

    `role` are the settings of the role that differ from those that `migrate` makes, as (name, is, should be).
    """

    version: int
    fsync: bool
    full_page_writes: bool
    autovacuum: bool
    max_connections: int
    reserved_connections: int
    standbys: int
    synchronous_standbys: bool
    role: Sequence[tuple[str, str, str]]
    sees_sessions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The upkeep of a table: live and dead rows, whether autovacuum may look after it, seconds since it did (None:
    never), and the age of its oldest row version in transactions."""

    table: str
    live: int
    dead: int
    autovacuum: bool
    vacuumed_s: float | None
    frozen_age: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """How PostgreSQL would run a hot statement: tables that it reads as a whole, and indexes that it uses."""

    statement: str
    table: str
    whole: Sequence[str]
    indexes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFacts:
    """The days for which a table has partitions, and `loose`: tables named as such that are not attached to it."""

    parent: str
    today: date
    days: frozenset[date]
    keep_days: int
    loose: Sequence[str]


class HolderKind(StrEnum):
    """What can hold a snapshot."""

    SESSION = "session"
    STANDBY = "standby"
    """A standby that tells its snapshots (`hot_standby_feedback`)."""
    SLOT = "slot"
    PREPARED = "prepared"
    """A transaction that was prepared for a two-phase commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Something that keeps old row versions alive, in words in `what`.

    `age` counts the transactions that were begun since; `open_s` is for how many seconds it has been open, None if that
    is not known.
    """

    kind: HolderKind
    what: str
    age: int
    open_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFacts:
    """A handler with due jobs: how many, for how long the oldest has waited, live workers and their slots, attempts."""

    name: str
    paused: bool
    due: int
    waited_s: float
    workers: int
    slots: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """A shard that its planned owner does not serve: its state, what it waits for, and for how many seconds."""

    shard: int
    state: str
    waiting_for: str
    for_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The cluster as a node sees it: leader (empty: none), trouble with the coordinator, nodes and their states, shards
    that are not served as planned, the number of all shards, and whether rebalancing is paused."""

    leader: str
    trouble: str
    nodes: Sequence[tuple[str, str]]
    shards: Sequence[ShardFacts]
    shard_count: int
    paused: bool


def span_text(seconds: float) -> str:
    """Return a span for people, in one unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
