"""The database's half of the protocols, as pure functions: what each statement does to a row, or None if to none.

The models are built on these, and the conformance test runs the same functions beside the real statements on a real
PostgreSQL. Numbers count from 1; 0 stands for NULL.
"""

from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from tests.model.protections import Protection

Removed = Collection[Protection]


class Lease(NamedTuple):
    """A coordinator's grant; later ones are greater."""

    generation: int
    token: int


class Shard(NamedTuple):
    """A row of `shards`."""

    epoch: int = 0
    lease: Lease = Lease(0, 0)
    owner: int = 0


class State(IntEnum):
    """As in the database; from COMPLETED on, the row has left for the history."""

    PENDING = 0
    RUNNING = 1
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5

    __hash__ = int.__hash__  # that of enumerations is slow


class Job(NamedTuple):
    """A row of `jobs`."""

    state: State = State.PENDING
    attempt: int = 0
    claim: int = 0
    open_claim: int = 0
    claim_epoch: int = 0
    worker: int = 0
    cancel_requested: bool = False

    @property
    def is_final(self) -> bool:
        return self.state >= State.COMPLETED


def fence_in(shard: Shard, lease: Lease, owner: int, removed: Removed = ()) -> Shard | None:
    """`server.store.shards.FENCE_IN`."""
    if Protection.GENERATION in removed:
        newer = lease.token > shard.lease.token
    else:
        newer = lease > shard.lease
    if not newer and Protection.CONDITIONAL_FENCE_IN not in removed:
        return None
    return Shard(shard.epoch + 1, lease, owner)


def read_back(shard: Shard, lease: Lease, owner: int) -> int:
    """`server.store.shards.READ_BACK`: the epoch, 0 if the fence is not this lease in these hands."""
    return shard.epoch if (shard.lease, shard.owner) == (lease, owner) else 0


def bump(shard: Shard, epoch: int, owner: int) -> Shard | None:
    """`server.store.shards.BUMP`."""
    return shard._replace(epoch=epoch + 1) if (shard.epoch, shard.owner) == (epoch, owner) else None


def passes(shard: Shard, epoch: int) -> bool:
    """`server.store.fence.FENCE`, at the moment at which it looks."""
    return shard.epoch == epoch


def claim(job: Job, epoch: int, worker: int) -> Job | None:
    """`server.store.claim.CLAIM`, behind its fence."""
    if job.state is not State.PENDING:
        return None
    number = job.claim + 1
    return Job(State.RUNNING, job.attempt + 1, number, number, epoch, worker)


def is_open(job: Job, number: int, removed: Removed = ()) -> bool:
    """Whether claim `number` may still be answered: the join of `FINISH`, `REQUEUE` and `LOAD_FACTS`."""
    if job.is_final or not number:
        return False
    return number == (job.claim if Protection.OPEN_CLAIM in removed else job.open_claim)


def finish(job: Job, number: int, state: State, removed: Removed = ()) -> Job | None:
    """`server.store.finish.FINISH`."""
    return job._replace(state=state, open_claim=0) if is_open(job, number, removed) else None


def requeue(job: Job, number: int, *, burn: bool, keep_open: bool = False, removed: Removed = ()) -> Job | None:
    """`server.store.finish.REQUEUE`."""
    if not is_open(job, number, removed) or job.cancel_requested:
        return None
    return job._replace(
        state=State.PENDING,
        attempt=job.attempt if burn else max(job.attempt - 1, 0),
        open_claim=job.open_claim if keep_open else 0,
        worker=job.worker if keep_open else 0,
        cancel_requested=False,
    )


def is_running(job: Job, number: int) -> bool:
    """`Recheck.OPEN`, with the join on the open claim: what a fenced ending acts on at most."""
    return job.state is State.RUNNING and is_open(job, number)


def is_lost(job: Job, number: int, *, lease_over: bool, removed: Removed = ()) -> bool:
    """`Recheck.WORKER_LOST`."""
    return is_running(job, number) and (lease_over or Protection.REAPER_RECHECK in removed)


def is_overdue(job: Job, number: int, *, grace_over: bool) -> bool:
    """`Recheck.TIMED_OUT`; a cancel counts as the end of the attempt's time."""
    return is_running(job, number) and (grace_over or job.cancel_requested)


def cancel(job: Job) -> Job | None:
    """`server.store.jobs_control.CANCEL`."""
    if job.is_final:
        return None
    if job.state is State.RUNNING:
        return job._replace(cancel_requested=True)
    return job._replace(state=State.CANCELLED, open_claim=0)


def revive(job: Job) -> Job | None:
    """`server.store.jobs_control.REVIVE`: claims go on being counted, so that none comes twice."""
    return Job(claim=job.claim) if job.state in (State.FAILED, State.CANCELLED) else None
