"""Holds namespaces to their quotas. One without quotas costs nothing.

Pending jobs are counted when somebody submits and what was left by the latest count is used up; so a refusal always
rests on a count that is fresh, and nodes together let in too much by at most what each is storing at that moment.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from server.api.errors import QuotaExceeded
from server.domain.quota import NO_ROOM, UNLIMITED, Quotas, RateBucket, Room, share
from server.store import quotas as store
from server.store.catalog import Namespace
from server.store.database import Database

# A count is good for so long even if nothing is submitted through this node: something may be through others.
COUNT_LIFE_S: Final = 10.0
# Counts of a namespace are this far apart, and take up at most a tenth of the time.
LEAST_PAUSE_S: Final = 0.2
COUNT_SHARE: Final = 0.1
# A submit waits for a count that is due so soon, instead of being refused.
PATIENCE_S: Final = 0.5


@dataclass(slots=True)
class _State:
    """What this node knows of the use that a namespace makes of its quotas. Times are monotonic seconds."""

    quotas: Quotas
    bucket: RateBucket | None
    room: Room = NO_ROOM
    counted_at_s: float = float("-inf")
    next_count_at_s: float = float("-inf")
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: int = 0
    """Jobs that the bucket had let in when the rates were exchanged last."""


class QuotaKeeper:
    """Asked before anything is stored. `nodes` returns how many nodes there are. For use from one event loop."""

    def __init__(self, database: Database, partition_of: Sequence[int], *, node: str, nodes: Callable[[], int]) -> None:
        self._database = database
        self._partition_of = partition_of
        self._node = node
        self._nodes = nodes
        self._states: dict[int, _State] = {}
        self._exchanged_at_s = time.monotonic()

    async def admit_jobs(self, namespace: Namespace, jobs: int, size: int) -> None:
        """Let jobs with so many bytes of payload be added, or raise `QuotaExceeded`."""
        quotas = namespace.quotas
        if quotas.submit_rate is None and quotas.pending_jobs is None and quotas.pending_bytes is None:
            return
        state = self._state(namespace)
        if quotas.pending_jobs is not None or quotas.pending_bytes is not None:
            await self._admit_pending(namespace, state, jobs, size)
        if state.bucket is not None:
            wait_s = state.bucket.take(jobs, time.monotonic())
            if wait_s:
                raise _exceeded(namespace, "submit_rate", f"{quotas.submit_rate:g} jobs per second", wait_s)

    async def admit_schedules(self, namespace: Namespace, names: Sequence[str]) -> None:
        """Let schedules of these names be there, or raise `QuotaExceeded`."""
        limit = namespace.quotas.schedules
        if limit is None:
            return
        count, known = await store.count_schedules(self._database, namespace.namespace_id, names, limit + len(names))
        if len(names) > known and count + len(names) - known > limit:
            raise _exceeded(namespace, "schedules", f"{limit} schedules", 60.0)

    async def exchange(self) -> None:
        """Share rates between the nodes; to be called about once a second."""
        now_s = time.monotonic()
        elapsed_s, self._exchanged_at_s = now_s - self._exchanged_at_s, now_s
        rates: dict[int, float] = {}
        for namespace_id, state in self._states.items():
            if state.bucket is not None:
                rates[namespace_id] = (state.bucket.taken - state.told) / max(elapsed_s, 0.001)
                state.told = state.bucket.taken
        if not rates:
            return
        of_others = await store.exchange_rates(self._database, self._node, rates)
        for namespace_id in rates:
            state = self._states[namespace_id]
            if state.bucket is not None and state.quotas.submit_rate is not None:
                part = share(state.quotas.submit_rate, self._nodes(), of_others.get(namespace_id, 0.0))
                state.bucket.set_rate(part, time.monotonic())

    def _state(self, namespace: Namespace) -> _State:
        state = self._states.get(namespace.namespace_id)
        if state is None or state.quotas != namespace.quotas:
            rate = namespace.quotas.submit_rate
            bucket = None if rate is None else RateBucket(rate, time.monotonic())
            state = self._states[namespace.namespace_id] = _State(namespace.quotas, bucket)
        return state

    async def _admit_pending(self, namespace: Namespace, state: _State, jobs: int, size: int) -> None:
        if not self._fits(state, jobs, size):
            async with state.counting:
                # Another caller may have counted meanwhile.
                if not self._fits(state, jobs, size):
                    await self._count(namespace, state, jobs, size)
        state.room = state.room.without(jobs, size)

    def _fits(self, state: _State, jobs: int, size: int) -> bool:
        return state.room.holds(jobs, size) and time.monotonic() - state.counted_at_s < COUNT_LIFE_S

    async def _count(self, namespace: Namespace, state: _State, jobs: int, size: int) -> None:
        """Count what is pending, and leave room for what is to be added; raise `QuotaExceeded` if that is too much."""
        wait_s = state.next_count_at_s - time.monotonic()
        if wait_s > PATIENCE_S or (wait_s > 0 and (state.room.jobs <= 0 or state.room.size <= 0)):
            raise self._full(namespace, state.room, jobs, wait_s)
        await asyncio.sleep(max(0.0, wait_s))
        began_s = time.monotonic()
        most = UNLIMITED if state.quotas.pending_jobs is None else state.quotas.pending_jobs + 1
        there = await store.count_pending(self._database, self._partition_of, namespace.namespace_id, most)
        ended_s = time.monotonic()
        pause_s = max(LEAST_PAUSE_S, (ended_s - began_s) * (1 - COUNT_SHARE) / COUNT_SHARE)
        state.counted_at_s, state.next_count_at_s = began_s, ended_s + pause_s
        left = Room.left(state.quotas, *there)
        if not left.holds(jobs, size):
            state.room = left.part(self._nodes())
            raise self._full(namespace, left, jobs, pause_s)
        # Of what is left beyond this, other nodes may take their parts.
        rest = left.without(jobs, size).part(self._nodes())
        state.room = Room(rest.jobs + jobs, rest.size + size)

    def _full(self, namespace: Namespace, room: Room, jobs: int, wait_s: float) -> QuotaExceeded:
        quotas = namespace.quotas
        if room.jobs < jobs and quotas.pending_jobs is not None:
            return _exceeded(namespace, "pending_jobs", f"{quotas.pending_jobs} pending jobs", wait_s)
        return _exceeded(namespace, "pending_bytes", f"{quotas.pending_bytes} bytes of pending payloads", wait_s)


def _exceeded(namespace: Namespace, quota: str, limit: str, wait_s: float) -> QuotaExceeded:
    return QuotaExceeded(namespace.name, quota, limit, retry_after=timedelta(seconds=max(wait_s, 0.1)))
