"""Which shards this node owns, at which epoch, and the lanes of their partitions.

Fenced statements of one partition run one at a time per node, in the partition's lane: no self-made races, and no two
transactions that share the lock of a shard row.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from server.domain.sharding import shard_of_id

log = logging.getLogger(__name__)


class Ownership:
    """The shards that are served right now. A shard is served from `add` to `remove`."""

    def __init__(self, partition_of: Sequence[int]) -> None:
        self.partition_of = partition_of
        self.partitions = max(partition_of) + 1
        self.epochs: dict[int, int] = {}
        self._served: list[dict[int, int]] = [{} for _ in range(self.partitions)]
        self.on_fenced: Callable[[int], None] = lambda shard: None
        self._lanes = [asyncio.Lock() for _ in range(self.partitions)]

    def partition_of_job(self, job_id: int) -> int | None:
        """Return the partition of a job; None if there is no such shard, so that the id was made up."""
        shard = shard_of_id(job_id)
        return self.partition_of[shard] if shard < len(self.partition_of) else None

    def lane(self, partition: int) -> asyncio.Lock:
        """Return the lock that every fenced statement of the partition is run under."""
        return self._lanes[partition]

    def add(self, shard: int, epoch: int) -> None:
        """Serve a shard at an epoch."""
        self.epochs[shard] = epoch
        self._served[self.partition_of[shard]][shard] = epoch

    def remove(self, shard: int) -> None:
        """Stop serving a shard; a statement that is under way may still commit."""
        self.epochs.pop(shard, None)
        self._served[self.partition_of[shard]].pop(shard, None)

    def of_partition(self, partition: int) -> list[tuple[int, int]]:
        """Return (shard, epoch) of the served shards of a partition, ascending."""
        return sorted(self._served[partition].items())

    def served_partitions(self) -> list[int]:
        """Return the partitions with at least one served shard, ascending."""
        return [partition for partition, served in enumerate(self._served) if served]

    def check(self, used: Iterable[tuple[int, int]], live: frozenset[int]) -> None:
        """Drop the shards that a fenced statement was sent with and did not find: another node owns them."""
        for shard, epoch in used:
            if shard not in live and self.epochs.get(shard) == epoch:
                # Whoever is told logs the loss, once, with its cause.
                log.debug("shard fenced", extra={"shard": shard, "epoch": epoch})
                self.remove(shard)
                self.on_fenced(shard)
