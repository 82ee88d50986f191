"""Joins the shard manager to the engine: the manager knows leases, the engine knows epochs."""

from collections.abc import Mapping, Sequence

from server.engine.ports import ShardStore
from server.engine.shard_runner import ShardRunner
from shard_manager.coordinator import Lease


class EngineShardHost:
    """Implements `shard_manager.host.ShardHost` with the engine's shard runner."""

    def __init__(self, runner: ShardRunner, store: ShardStore) -> None:
        self._runner = runner
        self._store = store
        self._epochs: dict[int, int] = {}

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        """Make each lease its shard's fence, if it is newer than the present one."""
        return await self._runner.fence_in([(lease.shard, lease.generation, lease.token) for lease in leases])

    async def start(self, shard: int, epoch: int) -> None:
        """Serve a shard."""
        self._epochs[shard] = epoch
        await self._runner.start(shard, epoch)

    async def stop(self, shard: int, *, graceful: bool) -> None:
        """Serve a shard no more; statements under way finish first either way."""
        await self._runner.stop(shard)

    async def released(self, shards: Sequence[int]) -> None:
        """Clear the owner that is shown."""
        await self._store.release_shards([(shard, self._epochs[shard]) for shard in shards if shard in self._epochs])
