"""The other side of the shard manager: what serves a shard once it is owned."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from shard_manager.coordinator import Lease


class ShardHost(Protocol):
    """Serves shards. Calls for one shard never overlap; calls for different shards do.

    Every call may be cancelled when its deadline (`ManagerTimings`) passes, and is then waited for once more as long as
    a stop may take: only one that goes on in spite of that can be overtaken. Whatever a host does or fails to do, the
    fence in PostgreSQL keeps a shard safe: a stop that fails or hangs is logged and the shard released all the same.
    """

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        """Make each lease its shard's fence, if it is newer than the present one, and return shard to new epoch.

        A shard missing from the answer was refused. An exception means that nothing is known; the same leases are
        tried again, so a lease that is already this node's own fence should be answered with its epoch.
        """

    async def start(self, shard: int, epoch: int) -> None:
        """Serve `shard` at `epoch`. If this raises, `stop` follows and the shard is leased anew."""

    async def stop(self, shard: int, *, graceful: bool) -> None:
        """Return when nothing of `shard` will be claimed any more. Graceful: what is in flight may finish first.

        `graceful=False` may follow while a graceful stop or a start is still running; that one is cancelled before.
        A graceful stop waits for a start that is still running, `stop_call` at most, then that one is cancelled too.
        """

    async def released(self, shards: Sequence[int]) -> None:
        """The leases of these shards, which were stopped before, are given back. For display; errors are only logged.

        Others may own the shards already, so what this writes must be conditional on the epoch.
        """
