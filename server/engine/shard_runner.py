"""Starting and stopping shards: what the shard manager asks of this node.

A shard starts with a fence-in that is conditional on its lease's token; then its running rows are loaded, its due jobs
are looked for, and workers are told. It stops by being taken out of the served set and waiting for the lane: after
`stop` nothing of the shard is claimed, reaped or fired any more. Running attempts are never touched by either.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from server.domain.job import AttemptRef
from server.engine.adoption import Adoption
from server.engine.due_index import DueIndex
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import EngineStore, OutcomeUnknown, StoreUnavailable
from server.engine.registry import Registry

log = logging.getLogger(__name__)


class ShardRunner:
    """Starts, recovers and stops shards; see the module."""

    def __init__(
        self,
        *,
        store: EngineStore,
        ownership: Ownership,
        registry: Registry,
        index: DueIndex,
        adoption: Adoption,
        started: Callable[[int], None],
        stopped: Callable[[int], None],
        give_back: Callable[[Sequence[AttemptRef]], None],
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._registry = registry
        self._index = index
        self._adoption = adoption
        self._started = started
        self._stopped = stopped
        self._give_back = give_back
        # Of each partition the shards, with epochs, whose starts wait for the lane.
        self._starting: dict[int, dict[int, int]] = {}

    async def fence_in(self, leases: Sequence[tuple[int, int, int]]) -> dict[int, int]:
        """Fence in with (shard, generation, token) of each lease; return the epochs of the accepted ones."""
        return await self._store.fence_in(leases)

    async def start(self, shard: int, epoch: int) -> None:
        """Serve a shard from now on.

        Starts of one partition that come together are carried out together: a node may be given a thousand at once.
        """
        partition = self._ownership.partition_of[shard]
        starting = self._starting.setdefault(partition, {})
        starting[shard] = epoch
        try:
            async with self._ownership.lane(partition):
                if shard in starting:
                    await self._start_all(partition, starting)
        finally:
            starting.pop(shard, None)

    async def _start_all(self, partition: int, starting: dict[int, int]) -> None:
        """Start what waits for it, with the lane held."""
        running = await self._store.running_of_shards(partition, sorted(starting))
        # A start that was given up meanwhile has taken its shard out again.
        started = {shard: starting.pop(shard) for shard in running if shard in starting}
        for shard, epoch in started.items():
            self._registry.forget_shard(shard)
            self._adoption.taken_over(running[shard])
            self._ownership.add(shard, epoch)
            log.debug("shard started", extra={"shard": shard, "epoch": epoch, "running": len(running[shard])})
        self._adoption.hello_shards(sorted(started.items()))
        for shard in started:
            self._started(shard)

    async def stop(self, shard: int) -> None:
        """Serve a shard no more; returns when no statement of it is under way."""
        epoch = self._ownership.epochs.get(shard)
        self._ownership.remove(shard)
        self._stopped(shard)
        async with self._ownership.lane(self._ownership.partition_of[shard]):
            self._index.forget_shard(shard)
            self._registry.forget_shard(shard)
        if epoch is not None:
            log.debug("shard stopped", extra={"shard": shard, "epoch": epoch})

    async def recover(self, partition: int, shards: Sequence[int]) -> None:
        """Settle a claim whose outcome is unknown, with the lane held.

        Raising the epoch waits for the statement, should it still run; what it has claimed is then read back. This node
        did not send those jobs anywhere, so they go back at once.
        """
        deadline = time.monotonic() + 60.0
        for shard in shards:
            backoff = Backoff()
            while (epoch := self._ownership.epochs.get(shard)) is not None:
                try:
                    await self._recover_shard(partition, shard, epoch)
                    break
                except (StoreUnavailable, OutcomeUnknown) as error:
                    if time.monotonic() > deadline:
                        log.warning("shard given up: its state cannot be settled", extra={"shard": shard})
                        self._ownership.check([(shard, epoch)], frozenset())
                        break
                    log.debug("recovery waits", extra={"shard": shard, "error": str(error)})
                    await asyncio.sleep(backoff.next_s())

    async def _recover_shard(self, partition: int, shard: int, epoch: int) -> None:
        raised = await self._store.bump(shard, epoch)
        if raised is None:
            self._ownership.check([(shard, epoch)], frozenset())
            return
        self._ownership.add(shard, raised)
        log.info("epoch raised", extra={"shard": shard, "epoch": raised, "cause": "outcome of a claim unknown"})
        running = await self._store.load_running(partition, shard)
        unknown = [job for job in running if job.ref not in self._registry]
        await self._adoption.reconcile(partition, shard, running)
        lost = [job.ref for job in unknown if job.claim_epoch == epoch]
        if lost:
            log.info("claimed jobs of an unknown outcome go back", extra={"shard": shard, "jobs": len(lost)})
            self._give_back(lost)
        self._adoption.hello_shards([(shard, raised)])
