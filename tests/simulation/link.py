"""One node's connection to the coordinator in memory: slow, and with requests and answers that get lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import TypeVar

from shard_manager.assignment import can_serve
from shard_manager.coordinator import Lease, Member, Plan, View
from shard_manager.errors import CoordinatorUnavailable
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from tests.simulation.fence import Host

T = TypeVar("T")
SLOW_SHARE = 0.3
LATENCY_S = 0.02


class Link:
    """A `Coordinator`. `loss` is the share of calls that fail, half of them only after they were carried out; while
    `stalled`, calls wait for it."""

    tells_at_once = True

    def __init__(
        self, cluster: MemoryCluster, chance: random.Random, host: Host, *, max_moves: int, new_for: timedelta
    ) -> None:
        """At most `max_moves` shards may be moved for balance by one plan, unless the cluster is new: for `new_for`
        after this node has seen it without any plan."""
        self._cluster = cluster
        self._inner = MemoryCoordinator(cluster)
        self._chance = chance
        self._host = host
        self._max_moves = max_moves
        self._seen: View | None = None
        self._new_for_s = new_for.total_seconds()
        self._new_until_s = 0.0
        self._is_new = False
        self.loss = 0.0
        self.going = asyncio.Event()
        self.going.set()

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        await self._maybe("join", lambda: self._inner.join(member, ttl=ttl, replaces=replaces))

    async def renew(self, member: Member) -> None:
        await self._maybe("renew", lambda: self._inner.renew(member))

    async def leave(self) -> None:
        await self._maybe("leave", self._inner.leave)

    async def close(self) -> None:
        await self._inner.close()

    async def view(self, *, fresh: bool = False) -> View:
        self._seen = await self._maybe("view", lambda: self._inner.view(fresh=fresh))
        now_s = self._cluster.clock()
        if self._seen.plan is None:
            self._new_until_s = now_s + self._new_for_s
        self._is_new = now_s < self._new_until_s
        return self._seen

    async def write_plan(self, plan: Plan) -> None:
        await self._maybe("write_plan", lambda: self._write(plan))

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        return await self._maybe("acquire", lambda: self._inner.acquire(shards))

    async def release(self, leases: Collection[Lease]) -> None:
        self._host.check_released([lease.shard for lease in leases])
        await self._maybe("release", lambda: self._inner.release(leases))

    async def evict(self, node: str, session: int) -> bool:
        return await self._maybe("evict", lambda: self._inner.evict(node, session))

    async def wait_change(self, timeout_s: float) -> None:
        await self._inner.wait_change(timeout_s)

    def wake(self) -> None:
        self._inner.wake()

    async def _maybe(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        """Carry out a call, late or never."""
        await self._delay()
        draw = self._chance.random() if self.loss else 1.0
        if draw < self.loss / 2:
            raise CoordinatorUnavailable(operation, "request lost")
        result = await call()
        await self._delay()
        if draw < self.loss:
            raise CoordinatorUnavailable(operation, "answer lost")
        return result

    async def _delay(self) -> None:
        await self.going.wait()
        if self._chance.random() < SLOW_SHARE:
            await asyncio.sleep(self._chance.random() * LATENCY_S)

    async def _write(self, plan: Plan) -> None:
        """Write, and judge what was written by what the writer could know."""
        before, leader = self._cluster.plan, self._cluster.leader()
        await self._inner.write_plan(plan)
        wrong = self._host.table.wrong
        if leader is None or leader.member.node != plan.leader:
            wrong.append(f"plan {plan.version} was written by {plan.leader}, which does not lead")
        if plan.version != (before.version if before is not None else 0) + 1:
            wrong.append(f"plan {plan.version} does not follow the one before it")
        if before is not None and self._seen is not None and not self._is_new:
            moved = _voluntary_moves(before, plan, can_serve(self._seen.members.values(), plan.orders))
            # For a shard that was moved by an order, another may go the other way.
            ordered = plan.reason.startswith("move ")
            if moved > self._max_moves + ordered:
                wrong.append(f"plan {plan.version} ({plan.reason}) moves {moved} shards of nodes that could keep them")


def _voluntary_moves(before: Plan, after: Plan, able: Collection[str]) -> int:
    """Shards that left a node which can serve, other than by a pin."""
    pins = {shard: pin.node for shard, pin in after.orders.pins.items()}
    return sum(
        1
        for shard, node in before.owners.items()
        if node in able and after.owners.get(shard) not in (node, pins.get(shard))
    )
