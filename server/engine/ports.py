"""What the engine needs from the outside: a store and a way to talk to workers."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from server.domain.due import ClaimResult, DueJob, Probe
from server.domain.ending import Ended, FencedEnds, Recheck, RunningJob
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import AckStatus, AttemptFacts, Finish, Requeue
from server.domain.worker_lease import Admission, Losses, Renewal


class StoreUnavailable(Exception):
    """The statement surely had no effect; try again later."""


class OutcomeUnknown(Exception):
    """The statement may have been committed or not."""


Epochs = Sequence[tuple[int, int]]


class DueStore(Protocol):
    """Finding and claiming what is due. All methods raise `StoreUnavailable` or `OutcomeUnknown`."""

    async def sweep(self, partition: int) -> list[DueJob]:
        """Return the earliest pending job of every (shard, handler, priority) of a partition."""

    async def pending_partitions(self, partitions: Sequence[int]) -> list[int]:
        """Return those of the partitions that have pending jobs, due or not."""

    async def peek(
        self, partition: int, pairs: Sequence[tuple[int, int, Sequence[datetime]]], limit: int
    ) -> list[DueJob]:
        """Return up to `limit` pending jobs per priority of each (shard, handler, lower bounds)."""

    async def claim(self, partition: int, epochs: Epochs, probes: Sequence[Probe], *, look_past: int) -> ClaimResult:
        """Claim due jobs for the given slots, fenced; look at `look_past` more per probe, for keyed jobs to park."""

    async def unpark(
        self, partition: int, epochs: Epochs, keys: Sequence[tuple[int, int, str, int]]
    ) -> tuple[list[DueJob], frozenset[int]]:
        """Make parked jobs claimable again, fenced; `keys` are (shard, namespace_id, key, how many)."""

    async def parked_with_room(
        self, partition: int, after: tuple[int, int, str] | None
    ) -> tuple[list[tuple[int, int, str, int]], tuple[int, int, str] | None]:
        """Return (shard, namespace_id, key, room) of keys with parked jobs and room, and where the next page begins."""


class DispatchTrace(Protocol):
    """Traces jobs that are handed out."""

    def dispatched(self, jobs: Sequence[ClaimedJob], claimed_s: float) -> None:
        """Take in that jobs, claimed `claimed_s` seconds ago, go to their workers; may change their trace context."""


class EndingStore(Protocol):
    """Ending attempts. All methods raise `StoreUnavailable` or `OutcomeUnknown`."""

    async def finish(self, partition: int, finishes: Sequence[Finish]) -> list[Ended]:
        """Move jobs to the history whose open claim is the given one."""

    async def requeue(self, partition: int, requeues: Sequence[Requeue]) -> list[Ended]:
        """Give jobs back whose open claim is the given one."""

    async def fenced_finish(
        self,
        partition: int,
        epochs: Epochs,
        finishes: Sequence[Finish],
        recheck: Recheck,
        grace: timedelta,
        as_of: datetime,
    ) -> FencedEnds:
        """Like `finish`, fenced and with the reason checked again; leases have to have been over at `as_of`."""

    async def fenced_requeue(
        self,
        partition: int,
        epochs: Epochs,
        requeues: Sequence[Requeue],
        recheck: Recheck,
        grace: timedelta,
        as_of: datetime,
    ) -> FencedEnds:
        """Like `requeue`, fenced and with the reason checked again; leases have to have been over at `as_of`."""

    async def load_facts(
        self, partition: int, refs: Sequence[AttemptRef]
    ) -> tuple[datetime | None, dict[AttemptRef, AttemptFacts]]:
        """Return the database clock and the facts of those attempts that are still open."""

    async def still_there(self, partition: int, job_ids: Sequence[int]) -> dict[int, int | None]:
        """Return those jobs that have not left, each with its open claim."""

    async def save_progress(self, partition: int, worker_id: int, progress: Sequence[tuple[AttemptRef, bytes]]) -> None:
        """Keep the progress of attempts of a worker that are still open."""


class RunningStore(Protocol):
    """Looking after running attempts, workers and expired jobs. Methods raise as in `DueStore`."""

    async def load_running(self, partition: int, shard: int) -> list[RunningJob]:
        """Return all running jobs of a shard."""

    async def running_of_shards(self, partition: int, shards: Sequence[int]) -> dict[int, list[RunningJob]]:
        """Return all running jobs of each of the shards."""

    async def running_of_workers(
        self, partition: int, shards: Sequence[int], workers: Sequence[int]
    ) -> list[RunningJob]:
        """Return running jobs of these workers, a page per shard and worker."""

    async def overdue(self, partition: int, shards: Sequence[int]) -> list[RunningJob]:
        """Return running jobs over their time, a page per shard."""

    async def expire(self, partition: int, epochs: Epochs) -> tuple[list[int], frozenset[int]]:
        """Fail pending jobs whose time is over, fenced; return their ids and the live shards."""

    async def attention(self, partition: int, shards: Sequence[int]) -> tuple[bool, bool, bool]:
        """Return whether there are expired pending jobs, overdue running ones, parked ones."""

    async def clean_keys(self, partition: int, epochs: Epochs) -> frozenset[int]:
        """Remove dedupe keys whose time is over and whose job is gone, fenced."""

    async def dead_workers(self, worker_ids: Sequence[int], *, as_of: datetime) -> list[int]:
        """Return those workers that have ended or are lost, or whose lease is over and was so at `as_of`."""


class WorkerStore(Protocol):
    """Leases of workers. Methods raise as in `DueStore`."""

    async def admit_worker(
        self,
        namespace_id: int,
        name: str,
        incarnation: int,
        sdk: str,
        slots: Mapping[str, int],
        lease: timedelta,
        *,
        identity: str,
        heard: Sequence[int],
        alone: bool,
        settling: timedelta,
    ) -> Admission:
        """Start or renew an incarnation's lease, unless another one of its name lives; else that one ends.

        `heard` are ids that this node hears. A node that is `alone` believes only itself, any other one also the
        leases; a doubt in one that is younger than `settling` leaves the question open. An incarnation belongs to the
        `identity` that it came with first.
        """

    async def renew_workers(self, heard: Mapping[int, timedelta], lease: timedelta, quiet: timedelta) -> Renewal:
        """Renew the leases that need it, from when their workers were heard, given as time that has passed since.

        Doubts about these workers go. One not heard for `quiet` gets all that is due to it, for it may be the last.
        """

    async def end_workers(self, worker_ids: Sequence[int], reason: str) -> None:
        """End incarnations for good."""

    async def doubt_workers(self, worker_ids: Sequence[int]) -> None:
        """Note that a stream of each of these workers broke just now."""

    async def lose_workers(self, worker_ids: Sequence[int], grace: timedelta) -> Losses:
        """Give up those workers that have been in doubt, for all nodes, for at least `grace`."""


class ShardStore(Protocol):
    """Fencing in and out. Methods raise as in `DueStore`."""

    async def fence_in(self, leases: Sequence[tuple[int, int, int]]) -> dict[int, int]:
        """Raise the epochs of (shard, generation, token); return the new epochs of those that were accepted."""

    async def bump(self, shard: int, epoch: int) -> int | None:
        """Raise the epoch of a shard this node owns, and so settle its statements under way; None if not owned."""

    async def release_shards(self, epochs: Epochs) -> None:
        """Clear the owner of each (shard, epoch) that this node still owns at that epoch."""


class EngineStore(DueStore, EndingStore, RunningStore, WorkerStore, ShardStore, Protocol):
    """Everything the engine asks of the database."""


class JobBroker(Protocol):
    """Publishes jobs of some handlers. Nothing blocks; what turns out not to be published comes back as undelivered."""

    def takes(self, handler_id: int) -> bool:
        """Whether jobs of a handler can be published now."""

    def publish(self, handler_id: int, jobs: Sequence[ClaimedJob]) -> bool:
        """Publish jobs; False if none of them will be."""


class WorkerLink(Protocol):
    """The sending half of a worker's session. Nothing blocks: messages are queued and written by the link."""

    def send_jobs(self, jobs: Sequence[ClaimedJob]) -> bool:
        """Queue jobs; False if the session is over and none of them will be written."""

    def send_acks(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """Queue acknowledgements; dropped if the session is over."""

    def send_cancels(self, cancels: Sequence[tuple[AttemptRef, str]]) -> None:
        """Queue cancels with their reason: "requested", "timeout" or "superseded"."""

    def send_owner_hello(self, request_id: int, epochs: Epochs) -> None:
        """Tell that this node owns shards; the worker answers with a report."""

    def send_audit(self, request_id: int, refs: Sequence[AttemptRef]) -> None:
        """Ask whether the worker holds these attempts; it answers with a report."""

    def send_demand(self, waiting: Sequence[tuple[int, int]]) -> None:
        """Tell how many jobs wait, by handler id."""

    def send_credit_ack(self, sequence: int) -> None:
        """Tell that a credit is kept to from now on."""

    def send_drain(self, grace: timedelta) -> None:
        """Tell that this node is about to stop."""

    def close(self) -> None:
        """End the session; queued jobs that were not written come back as undelivered."""
