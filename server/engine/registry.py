"""Running attempts of the owned shards, as this node believes them to be.

An entry is added by a claim, or when a shard is taken over, and removed when the attempt ends. `session_id` says on
which stream this node itself handed the attempt over; None means that it did not, so that the worker has to be asked.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from server.domain.job import AttemptRef


@dataclass(slots=True)
class RunningEntry:
    """One running attempt."""

    ref: AttemptRef
    shard: int
    handler_id: int
    worker_id: int
    claim_epoch: int
    timeout_at: datetime | None
    session_id: int | None
    key: tuple[int, str] | None = None
    """Namespace and concurrency key of a job that has one."""
    since_s: float = field(default_factory=time.monotonic)
    """When this node came to know it, by the monotonic clock."""


class Registry:
    """Running attempts by name, by worker and by shard."""

    def __init__(self) -> None:
        self._entries: dict[AttemptRef, RunningEntry] = {}
        self._of_worker: dict[int, set[AttemptRef]] = {}
        self._of_shard: dict[int, set[AttemptRef]] = {}
        self._of_handler: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ref: AttemptRef) -> bool:
        return ref in self._entries

    def add(self, entry: RunningEntry) -> None:
        """Add an attempt, or replace what is known of it."""
        self.remove(entry.ref)
        self._entries[entry.ref] = entry
        self._of_worker.setdefault(entry.worker_id, set()).add(entry.ref)
        self._of_shard.setdefault(entry.shard, set()).add(entry.ref)
        self._of_handler[entry.handler_id] += 1

    def get(self, ref: AttemptRef) -> RunningEntry | None:
        """Return an attempt."""
        return self._entries.get(ref)

    def remove(self, ref: AttemptRef) -> RunningEntry | None:
        """Remove an attempt and return it."""
        entry = self._entries.pop(ref, None)
        if entry is not None:
            _discard(self._of_worker, entry.worker_id, ref)
            _discard(self._of_shard, entry.shard, ref)
            self._of_handler[entry.handler_id] -= 1
            if not self._of_handler[entry.handler_id]:
                del self._of_handler[entry.handler_id]
        return entry

    def workers(self) -> list[int]:
        """Return the workers that have running attempts."""
        return list(self._of_worker)

    def of_worker(self, worker_id: int) -> list[RunningEntry]:
        """Return the running attempts of a worker."""
        return [self._entries[ref] for ref in self._of_worker.get(worker_id, ())]

    def of_shard(self, shard: int) -> list[RunningEntry]:
        """Return the running attempts of a shard."""
        return [self._entries[ref] for ref in self._of_shard.get(shard, ())]

    def of_handler(self, handler_id: int) -> int:
        """Return the number of running attempts of a handler."""
        return self._of_handler[handler_id]

    def shards_of_workers(self, worker_ids: Iterable[int]) -> set[int]:
        """Return the shards in which these workers have running attempts."""
        refs = (ref for worker_id in worker_ids for ref in self._of_worker.get(worker_id, ()))
        return {self._entries[ref].shard for ref in refs}

    def forget_shard(self, shard: int) -> None:
        """Drop all attempts of a shard; they go on running, another owner looks after them."""
        for ref in list(self._of_shard.get(shard, ())):
            self.remove(ref)


def _discard(index: dict[int, set[AttemptRef]], key: int, ref: AttemptRef) -> None:
    refs = index.get(key)
    if refs is not None:
        refs.discard(ref)
        if not refs:
            del index[key]
