"""A model of the shard table in PostgreSQL, and hosts that serve shards by it: what the real manager is run against.

The table judges at the moment at which a statement takes effect, however long it was on its way, as the real one does.
It keeps account of what must never happen, whatever the managers do: `wrong` says what did.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shard_manager.coordinator import Lease


@dataclass(slots=True)
class Row:
    """One shard."""

    epoch: int
    lease: Lease
    incarnation: int
    released: bool = False


class FenceTable:
    """All shards. `conditional` False leaves out the protection that a fence-in needs a newer lease."""

    def __init__(self, *, conditional: bool = True) -> None:
        self.rows: dict[int, Row] = {}
        self.wrong: list[str] = []
        self.statements = 0
        self.refused = 0
        self._conditional = conditional
        self._newest: dict[int, Lease] = {}
        self._of_epoch: dict[tuple[int, int], int] = {}
        self._accepted: dict[int, int] = {}

    def fence_in(self, incarnation: int, leases: Sequence[Lease]) -> dict[int, int]:
        """FENCE_IN, and READ_BACK for those that it refused."""
        for lease in leases:
            row = self.rows.get(lease.shard)
            if row is None or lease > row.lease or not self._conditional:
                self._raise(row.epoch + 1 if row is not None else 1, lease, incarnation)
        answer = {}
        for lease in leases:
            row = self.rows[lease.shard]
            if (row.lease, row.incarnation) == (lease, incarnation):
                answer[lease.shard] = row.epoch
        return answer

    def release(self, shard: int, epoch: int, incarnation: int) -> None:
        """RELEASE: the owner gives the shard up, if it still is its owner at that epoch."""
        row = self.rows[shard]
        if (row.epoch, row.incarnation) == (epoch, incarnation):
            row.released = True

    def last_owners(self) -> dict[int, int]:
        """LAST_OWNERS: shard to incarnation."""
        return {shard: row.incarnation for shard, row in sorted(self.rows.items()) if not row.released}

    def statement(self, shard: int, epoch: int, incarnation: int) -> bool:
        """A claim, reap, firing or clean-up takes effect; False: it found no row."""
        self.statements += 1
        row = self.rows.get(shard)
        if row is None or row.epoch != epoch:
            self.refused += 1
            return False
        if self._of_epoch[shard, epoch] != incarnation:
            self.wrong.append(f"shard {shard}, epoch {epoch}: {incarnation} acts in the name of another")
        if epoch < self._accepted.get(shard, 0):
            self.wrong.append(f"shard {shard}: epoch {epoch} after {self._accepted[shard]}")
        self._accepted[shard] = epoch
        return True

    def _raise(self, epoch: int, lease: Lease, incarnation: int) -> None:
        shard = lease.shard
        if shard in self._newest and lease < self._newest[shard]:
            self.wrong.append(f"shard {shard}: a stalled node fences out the owner of a newer lease")
        self._newest[shard] = max(lease, self._newest.get(shard, lease))
        self._of_epoch[shard, epoch] = incarnation
        self.rows[shard] = Row(epoch, lease, incarnation)


class Host:
    """Serves shards of one process: statements with its epochs, some of which are under way for long.

    `delay_s` says how long a call takes; immediate stops take no time. `fence_errors` and the sets make calls fail.
    """

    def __init__(self, table: FenceTable, incarnation: int, delay_s: Callable[[], float]) -> None:
        self.table = table
        self.incarnation = incarnation
        self.delay_s = delay_s
        self.running: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self.fence_errors = 0
        self.fence_answers_lost = 0
        self.refuses_to_start: set[int] = set()
        self.hangs_on_stop: set[int] = set()
        self.fenced: Callable[[int, int], None] = lambda shard, epoch: None
        self._busy: set[int] = set()

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        await asyncio.sleep(self.delay_s())
        if self.fence_errors:
            self.fence_errors -= 1
            raise RuntimeError("database away")
        answer = self.table.fence_in(self.incarnation, leases)
        if self.fence_answers_lost:
            self.fence_answers_lost -= 1
            raise RuntimeError("connection lost")
        return answer

    async def start(self, shard: int, epoch: int) -> None:
        with self._alone(shard):
            await asyncio.sleep(self.delay_s())
        if shard in self.refuses_to_start:
            raise RuntimeError(f"shard {shard} does not start")
        if shard in self.running:
            self._wrong(f"shard {shard} is started twice")
        self.running[shard] = self._epochs[shard] = epoch

    async def stop(self, shard: int, *, graceful: bool) -> None:
        with self._alone(shard):
            if graceful:
                if shard in self.hangs_on_stop:
                    await asyncio.Event().wait()
                await asyncio.sleep(self.delay_s())
        self.running.pop(shard, None)

    async def released(self, shards: Sequence[int]) -> None:
        for shard in shards:
            if shard in self._epochs:
                self.table.release(shard, self._epochs.pop(shard), self.incarnation)

    def work(self, delay_s: Callable[[], float]) -> None:
        """Send a statement for each shard that is served; it takes effect `delay_s()` later, whatever happens."""
        loop = asyncio.get_running_loop()
        for shard, epoch in sorted(self.running.items()):
            loop.call_later(delay_s(), self._take_effect, shard, epoch)

    def check_released(self, shards: Sequence[int]) -> None:
        """The coordinator is asked to give up the leases of `shards`."""
        for shard in shards:
            if shard in self.running:
                self._wrong(f"the lease of shard {shard} is given up while it is served")

    def _take_effect(self, shard: int, epoch: int) -> None:
        if not self.table.statement(shard, epoch, self.incarnation):
            self.fenced(shard, epoch)

    @contextmanager
    def _alone(self, shard: int) -> Iterator[None]:
        if shard in self._busy:
            self._wrong(f"calls for shard {shard} overlap")
        self._busy.add(shard)
        try:
            yield
        finally:
            self._busy.discard(shard)

    def _wrong(self, what: str) -> None:
        self.table.wrong.append(f"incarnation {self.incarnation}: {what}")
