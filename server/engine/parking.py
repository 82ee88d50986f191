"""Concurrency keys: jobs parked behind their key come back when a running one ends.

The claim parks what exceeds a key's limit. The end of a keyed attempt frees room: the parked heads are woken in the
partition's lane, so that no claim which might still be parking crosses. A sweep finds keys whose note got lost.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from server.domain.due import DueJob
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import DueStore, OutcomeUnknown, StoreUnavailable

log = logging.getLogger(__name__)


class Parking:
    """Wakes parked jobs; see the module."""

    def __init__(self, *, store: DueStore, ownership: Ownership, pending: Callable[[Sequence[DueJob]], None]) -> None:
        self._store = store
        self._ownership = ownership
        self._pending = pending
        self._freed: dict[int, dict[tuple[int, int, str], int]] = {}
        self._after: dict[int, tuple[int, int, str] | None] = {}
        self._wake = asyncio.Event()

    def key_freed(self, shard: int, namespace_id: int, key: str) -> None:
        """Note that an attempt of a key has ended."""
        if shard not in self._ownership.epochs:
            return
        keys = self._freed.setdefault(self._ownership.partition_of[shard], {})
        keys[(shard, namespace_id, key)] = keys.get((shard, namespace_id, key), 0) + 1
        self._wake.set()

    async def run(self) -> None:
        """Wake parked jobs for ever."""
        backoff = Backoff()
        while True:
            while not self._freed:
                self._wake.clear()
                await self._wake.wait()
            partition, keys = self._freed.popitem()
            try:
                await self._unpark(partition, [(*key, count) for key, count in keys.items()])
                backoff.reset()
            except (StoreUnavailable, OutcomeUnknown):
                # The sweep finds these keys again.
                await asyncio.sleep(backoff.next_s())
            except Exception:
                log.exception("parked jobs could not be woken", extra={"partition": partition})
                await asyncio.sleep(backoff.next_s())

    async def sweep(self, partition: int) -> None:
        """Wake the parked jobs of keys that have room, a page of the keys at a time."""
        keys, self._after[partition] = await self._store.parked_with_room(partition, self._after.get(partition))
        await self._unpark(partition, keys)

    async def _unpark(self, partition: int, keys: Sequence[tuple[int, int, str, int]]) -> None:
        async with self._ownership.lane(partition):
            keys = [key for key in keys if key[0] in self._ownership.epochs]
            if not keys:
                return
            shards = sorted({key[0] for key in keys})
            epochs = [(shard, self._ownership.epochs[shard]) for shard in shards]
            woken, live = await self._store.unpark(partition, epochs, keys)
            self._ownership.check(epochs, live)
        self._pending(woken)
