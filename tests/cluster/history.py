"""What a cluster did, as plain data: what was promised, what ran, who lived, what was broken, and what is left.

Values only; how they are read from files and the database is in `evidence`, what they have to fulfil in `checker`.
Wall clock times are seconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.cluster.journal import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that a client wanted. Its name is its own, however often it was sent."""

    name: str
    handler: str
    sent: Instant
    """Before it was sent for the first time."""
    due_at: float | None = None
    """The due time that was asked for; None: at once."""
    dedupe_key: str = ""
    concurrency_key: str = ""
    concurrency_limit: int = 1
    timeout_s: float | None = None
    """Time limit of each attempt."""
    failures: int = 0
    """How many tries fail by intent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answered submit: from here on the job is promised. One submission has several if it was sent several times."""

    name: str
    job: int
    created: bool
    differs: bool
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One entry into a handler, from a worker's file."""

    job: int
    claim: int
    attempt: int
    handler: str
    worker: str
    pid: int
    claimed_at: float
    """By the database's clock, less `offset_s`."""
    started: Instant
    ended: Instant | None = None
    """None if the process was killed before, or the handler still ran when the file was read."""
    outcome: str = ""
    """`COMPLETED` of `worker_program`, or the name of an exception."""
    offset_s: float = 0.0
    """How far the database's clock was ahead of the machine's when it was claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A time in which a process was stopped (SIGSTOP)."""

    began: Instant
    ended: Instant | None = None
    """None if it was killed before it could go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One run of a process."""

    kind: str
    """`node` or `worker`."""
    process: str
    pid: int
    started: Instant
    killed: Instant | None = None
    """Just before it was killed (-9)."""
    terminated: Instant | None = None
    """Just before it was asked to stop (SIGTERM)."""
    gone: Instant | None = None
    """When it was seen to have ended."""
    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalJob:
    """A job as the database has it in the end."""

    job: int
    name: str
    state: str
    claim: int
    """Number of its latest claim; of the accepted one if it is completed."""
    due_at: float
    schedule: int | None = None
    scheduled_for: float | None = None
    result_claim: int | None = None
    """The claim that the stored result says it comes from; None without a result."""
    result_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurring:
    """A schedule: the nominal times that it was asked for, and the database's account of them."""

    schedule: int
    name: str
    nominal: tuple[float, ...]
    """Its expansion, worked out by whoever defined it."""
    exact: bool
    """Whether every firing has to make a job; else skipped ones must be counted."""
    fired: int
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochRaise:
    """A shard's epoch became another one."""

    shard: int
    before: int
    epoch: int
    process: str
    """The process whose connection did it, with the number of its start."""
    owner: str | None
    """The node that the shard belongs to by the database's account,"""
    incarnation: int | None
    """and its incarnation."""


@dataclass(frozen=True, slots=True)
class Trespass:
    """Something that only the owner of a shard may do was done by another process, or under another epoch."""

    deed: str
    """`claim`, `reap`, `fire` or `clean`."""
    shard: int
    epoch: int
    """The shard's epoch when it was done."""
    used: int | None
    """The epoch that it was done under; None if it leaves no trace."""
    process: str
    owner: str | None
    """The process that had raised the shard's epoch to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A time in which one process did not reach another over the network, in one direction at least."""

    source: str
    """Who connects."""
    target: str
    began: Instant
    ended: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that really happened: its victim was alive and was hit."""

    fault: str
    """Its kind."""
    victim: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that checkers look at."""

    lease_s: float
    """Lease of a worker."""
    reset_grace_s: float
    """How long a worker whose stream broke may take to come back."""
    kill_grace_s: float
    """How long an attempt that was told to stop may take before it is superseded."""
    submissions: tuple[Submission, ...] = ()
    answers: tuple[Answer, ...] = ()
    executions: tuple[Execution, ...] = ()
    lives: tuple[Life, ...] = ()
    jobs: tuple[FinalJob, ...] = ()
    schedules: tuple[Recurring, ...] = ()
    chosen: tuple[str, ...] = ()
    """The kinds of faults that were to strike."""
    strikes: tuple[Strike, ...] = ()
    cuts: tuple[Cut, ...] = ()
    raises: tuple[EpochRaise, ...] = ()
    """In the order in which they happened to each shard."""
    trespasses: tuple[Trespass, ...] = ()
