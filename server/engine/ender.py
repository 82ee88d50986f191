"""Ends attempts: the one place where the effects of an ended attempt on this node's memory are drawn.

The completer ends what workers report, keyed on the open claim alone; the reaper and the hand-over end what they find,
fenced and with their reason checked again in the statement.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from server.domain.due import DueJob
from server.domain.ending import ANY_LEASE, Ended, FencedEnds, Recheck
from server.domain.job import AttemptRef, JobState
from server.domain.outcome import AttemptFacts, Decision, Ending, Finish, Outcome, Requeue, decide, ending_of
from server.domain.sharding import shard_of_id
from server.engine.deadlines import Deadlines
from server.engine.ownership import Ownership
from server.engine.ports import EndingStore
from server.engine.ports_peers import AttemptEnded, JobFinal, Peers
from server.engine.registry import Registry, RunningEntry
from server.engine.slots import SlotBook
from server.engine.tally import Tally
from server.engine.waiters import Waiters

# A finish moves the payload to the history: a statement for more of the largest ones might never be done in its time.
MAX_FENCED_FINISHES: Final = 64
_ENDED_STATES: Final = (JobState.PENDING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
RUN_TIME_BOUNDS_S: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)


class Ender:
    """Applies decisions and their consequences."""

    def __init__(
        self,
        *,
        store: EndingStore,
        ownership: Ownership,
        registry: Registry,
        deadlines: Deadlines,
        slots: SlotBook,
        waiters: Waiters,
        pending: Callable[[Sequence[DueJob]], None],
        key_freed: Callable[[int, int, str], None],
        peers: Peers,
        attempt_ended: Callable[[int], None],
    ) -> None:
        """`attempt_ended` is told the handler of each attempt that does not run any more."""
        self._store = store
        self._ownership = ownership
        self._registry = registry
        self._deadlines = deadlines
        self._slots = slots
        self._waiters = waiters
        self._pending = pending
        self._key_freed = key_freed
        self._peers = peers
        self._attempt_ended = attempt_ended
        self.ended_by_state: dict[JobState, int] = dict.fromkeys(_ENDED_STATES, 0)
        self.endings: dict[Ending, int] = dict.fromkeys(Ending, 0)
        """Attempts by how they ended."""
        self.retries = 0
        """Attempts that burned a try and went back to be tried again."""
        self.by_recheck: dict[Recheck, int] = dict.fromkeys(Recheck, 0)
        """Attempts that the owner itself has ended, by its reason."""
        self.run_time = Tally(RUN_TIME_BOUNDS_S)
        """Seconds from the hand-over by this node to the stored end."""

    def by_partition(self, refs: Iterable[AttemptRef]) -> dict[int, list[AttemptRef]]:
        """Group attempts by the partition of their job; those whose shard does not exist are left out."""
        groups: dict[int, list[AttemptRef]] = {}
        for ref in refs:
            partition = self._ownership.partition_of_job(ref.job_id)
            if partition is not None:
                groups.setdefault(partition, []).append(ref)
        return groups

    async def end(self, partition: int, decisions: Sequence[Decision]) -> set[AttemptRef]:
        """Apply decisions that workers' results led to; return the attempts that were still open."""
        finishes = [one for one in decisions if isinstance(one, Finish)]
        requeues = [one for one in decisions if isinstance(one, Requeue)]
        ended: list[Ended] = []
        if finishes:
            ended += await self._store.finish(partition, finishes)
        if requeues:
            ended += await self._store.requeue(partition, requeues)
        self.note(ended)
        return self._count(decisions, ended)

    async def end_fenced(
        self,
        partition: int,
        decisions: Sequence[Decision],
        recheck: Recheck,
        *,
        grace: timedelta = timedelta(0),
        as_of: datetime = ANY_LEASE,
    ) -> list[Ended]:
        """Apply the owner's own decisions, with the lane of the partition held; return what was ended.

        `grace` and `as_of` are bounds of the recheck: of how long a time is over, and of when a lease was.
        """
        ended: list[Ended] = []
        finishes = [one for one in decisions if isinstance(one, Finish)]
        requeues = [one for one in decisions if isinstance(one, Requeue)]
        for start in range(0, len(finishes), MAX_FENCED_FINISHES):
            some = finishes[start : start + MAX_FENCED_FINISHES]
            epochs = self._epochs(some)
            ends = await self._store.fenced_finish(partition, epochs, some, recheck, grace, as_of)
            ended += self._checked(epochs, ends)
        if requeues:
            epochs = self._epochs(requeues)
            ends = await self._store.fenced_requeue(partition, epochs, requeues, recheck, grace, as_of)
            ended += self._checked(epochs, ends)
        self.note(ended)
        self.by_recheck[recheck] += len(ended)
        self._count(decisions, ended)
        return ended

    async def decide_and_end_fenced(
        self, partition: int, outcomes: Mapping[AttemptRef, Outcome], recheck: Recheck
    ) -> list[Ended]:
        """Read the attempts' facts, decide, and end them fenced; attempts that are not open any more are left out."""
        now, facts = await self._store.load_facts(partition, list(outcomes))
        if now is None:
            return []
        decisions = [decide(outcomes[ref], one, now, random.random) for ref, one in facts.items()]
        return await self.end_fenced(partition, decisions, recheck)

    async def facts(
        self, partition: int, refs: Sequence[AttemptRef]
    ) -> tuple[datetime | None, dict[AttemptRef, AttemptFacts]]:
        """Return the database clock and the facts of those attempts that are still open."""
        return await self._store.load_facts(partition, refs)

    def forget(self, ref: AttemptRef) -> RunningEntry | None:
        """Drop an attempt that is known to have ended somehow, and return what was known of it."""
        entry = self._registry.remove(ref)
        if entry is not None:
            self._deadlines.forget(ref)
            self._slots.returned(entry.worker_id, ref)
            self._attempt_ended(entry.handler_id)
        return entry

    def gone(self, ref: AttemptRef, *, job_final: bool) -> None:
        """Draw the consequences of an attempt that was ended by somebody else: by another node, or in the worker's own
        transaction, of which the owner has to hear."""
        ended = AttemptEnded(ref, final=job_final, key_told=False)
        self.told(ended)
        self._peers.tell_owner(shard_of_id(ref.job_id), ended)

    def told(self, ended: AttemptEnded) -> None:
        """Draw the consequences of an attempt's end that another node has told of."""
        entry = self.forget(ended.ref)
        if entry is not None and entry.key is not None and not ended.key_told:
            self._key_freed(entry.shard, *entry.key)
        if ended.final:
            self._waiters.finished([ended.ref.job_id])

    def job_final(self, job_id: int) -> None:
        """Draw the consequences of a job's end without an attempt."""
        self._waiters.finished([job_id])
        self._peers.tell_owner(shard_of_id(job_id), JobFinal(job_id))

    def note(self, ended: Sequence[Ended]) -> None:
        """Draw the consequences of ended attempts, here and at the owners of their shards."""
        due, final = [], []
        now_s = time.monotonic()
        for one in ended:
            entry = self.forget(one.ref)
            is_final = one.state is not JobState.PENDING
            self._peers.tell_owner(one.shard, AttemptEnded(one.ref, final=is_final, key_told=True))
            if entry is not None and entry.session_id is not None:
                self.run_time.observe(now_s - entry.since_s)
            self.ended_by_state[one.state] += 1
            if not is_final:
                due.append(DueJob(one.priority, one.due_at, one.ref.job_id, one.shard, one.handler_id))
            else:
                final.append(one.ref.job_id)
            if one.concurrency_key is not None:
                self._key_freed(one.shard, one.namespace_id, one.concurrency_key)
        if due:
            self._pending(due)
        self._waiters.finished(final)

    def _count(self, decisions: Sequence[Decision], ended: Sequence[Ended]) -> set[AttemptRef]:
        """Count what was ended of what was decided, and return it."""
        refs = {one.ref for one in ended}
        for one in decisions:
            if one.ref in refs:
                self.endings[ending_of(one)] += 1
                self.retries += isinstance(one, Requeue) and one.burn
        return refs

    def _epochs(self, decisions: Sequence[Finish] | Sequence[Requeue]) -> list[tuple[int, int]]:
        shards = {shard_of_id(one.ref.job_id) for one in decisions}
        return [(shard, self._ownership.epochs[shard]) for shard in sorted(shards) if shard in self._ownership.epochs]

    def _checked(self, epochs: list[tuple[int, int]], ends: FencedEnds) -> list[Ended]:
        self._ownership.check(epochs, ends.live_shards)
        return ends.ended
