"""Which node serves which shard, as the demo watches it in the table of shards: the fence itself."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

from server.engine.loops import every
from server.store.database import Database
from server.store.shards import ShardRow, list_shards

_EVERY_S: Final = 0.05


class Ownership:
    """What was seen of the shards, and what became of those of a killed node."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        """Shard to node, of those that are served as far as anybody knows: a killed node's are until they move."""
        self._rows: dict[int, ShardRow] = {}
        self._victim = ""
        self._orphans: dict[int, int] = {}
        self._served_again: dict[int, tuple[float, str]] = {}

    def see(self, rows: Sequence[ShardRow]) -> None:
        """Take in a look at all shards."""
        self._rows = {row.shard: row for row in rows}
        self.owners = {row.shard: row.owner for row in rows if row.owner is not None}
        for shard, epoch in self._orphans.items():
            row = self._rows[shard]
            if shard not in self._served_again and row.epoch > epoch and row.owner and row.acquired_at:
                self._served_again[shard] = (row.acquired_at.timestamp(), row.owner)

    @property
    def counts(self) -> Counter[str]:
        """Number of shards by node."""
        return Counter(self.owners.values())

    def is_balanced(self, nodes: Collection[str]) -> bool:
        """Whether every shard is served, and the nodes differ by one shard at most."""
        counts = [self.counts[node] for node in nodes]
        return bool(self._rows) and sum(counts) == len(self._rows) and max(counts) - min(counts) <= 1

    def lose(self, node: str) -> None:
        """Remember the shards of a node that has been killed."""
        self._victim = node
        self._orphans = {shard: self._rows[shard].epoch for shard, owner in self.owners.items() if owner == node}

    @property
    def orphans(self) -> frozenset[int]:
        """The killed node's shards at the time of the kill."""
        return frozenset(self._orphans)

    @property
    def moved(self) -> int:
        """How many of them were served next by another node."""
        return sum(owner != self._victim for _, owner in self._served_again.values())

    @property
    def recovered_at(self) -> float | None:
        """When the last of them was served again, by the database's clock, in seconds since 1970; None: not yet."""
        if len(self._served_again) < len(self._orphans):
            return None
        return max((at for at, _ in self._served_again.values()), default=None)


@asynccontextmanager
async def watched_ownership(dsn: str) -> AsyncIterator[Ownership]:
    """Yield what is seen of the shards, kept up to date every 50 ms. Raises `Unavailable`."""
    ownership = Ownership()
    database = Database(dsn, hot_connections=2, api_connections=2)

    async def look() -> None:
        ownership.see(await list_shards(database))

    await database.open()
    watching = asyncio.create_task(every(_EVERY_S, "demo-ownership", look))
    try:
        yield ownership
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await database.close()
