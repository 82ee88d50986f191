"""Lease znodes: take, give back, and find out what became of those whose answer was lost."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from shard_manager.coordinator import Lease
from shard_manager.zookeeper.messages import (
    Check,
    Create,
    Delete,
    LinkLost,
    Reason,
    Refused,
)
from shard_manager.zookeeper.session import Session, commit, look_alive
from shard_manager.zookeeper.tree import encode_lease, lease_generation

_BATCH: Final = 256
#: A batch succeeds as a whole or not at all; after so many attempts, shards are taken one by one.
_BATCH_ATTEMPTS: Final = 3


class GenerationChanged(Exception):
    """The generation in force is another than the session knows."""


async def acquire_leases(session: Session, shards: Collection[int]) -> list[Lease]:
    """Lease what is free of `shards`; returns all of them that the session holds. Raises `GenerationChanged`."""
    await settle_uncertain(session, session.uncertain.intersection(shards))
    todo = set(shards) - set(session.held)
    if not todo:
        await look_alive(session)
    for attempt in range(_BATCH_ATTEMPTS + 1):
        if not todo:
            break
        names = set(await session.link.children(session.tree.leases))
        taken = {shard for shard in todo if f"{shard:04d}" in names}
        # Watched, so that whoever waits for them is woken when they are released. Some may be this session's own.
        await resolve(session, taken, watch=True)
        todo -= taken
        size = _BATCH if attempt < _BATCH_ATTEMPTS else 1
        batches = list(_batches(sorted(todo), size))
        granted = await asyncio.gather(*(_create(session, batch) for batch in batches))
        todo = {shard for batch, done in zip(batches, granted, strict=True) if not done for shard in batch}
    return [session.held[shard] for shard in sorted(shards) if shard in session.held]


async def release_leases(session: Session, leases: Collection[Lease]) -> None:
    """Give back those of `leases` that the session holds.

    ZooKeeper deletes by name: a lease that somebody deleted by hand, and another node has taken since, goes too, unless
    a fresh view was read meanwhile. That node finds out by its own fresh view and leases anew.
    """
    await settle_uncertain(session, session.uncertain.intersection(lease.shard for lease in leases))
    shards = sorted(lease.shard for lease in leases if session.held.get(lease.shard) == lease)
    left: list[int] = []
    for batch in _batches(shards, _BATCH):
        if not await _delete(session, batch):
            left.extend(batch)
    # One that somebody else has deleted keeps its batch from being released.
    await asyncio.gather(*(_delete(session, [shard]) for shard in left))
    if not shards:
        await look_alive(session)


async def settle_uncertain(session: Session, shards: Collection[int]) -> None:
    """Find out what became of requests for `shards` that got no answer.

    Requests over one connection are carried out in order. One that was on its way over an earlier connection, to
    another server, is ordered before the sync or never happens, for its session has moved.
    """
    if shards:
        await session.link.sync(session.tree.leases)
        await resolve(session, shards)


async def resolve(session: Session, shards: Iterable[int], *, watch: bool = False) -> None:
    """Read which of `shards` the session holds, and correct `held`."""
    wanted = list(shards)
    found = await asyncio.gather(*(session.link.get(session.tree.lease(shard), watch=watch) for shard in wanted))
    for shard, znode in zip(wanted, found, strict=True):
        session.uncertain.discard(shard)
        if znode is None or znode[1].session != session.number:
            session.held.pop(shard, None)
        else:
            data, stat = znode
            session.held[shard] = Lease(shard=shard, generation=lease_generation(data), token=stat.made_by)


async def _create(session: Session, shards: list[int]) -> bool:
    tree, generation = session.tree, session.generation
    data = encode_lease(generation.number, session.node)
    session.uncertain.update(shards)
    try:
        await commit(session, [
            Check(tree.meta, generation.version),
            *(Create(tree.lease(shard), data, ephemeral=True) for shard in shards),
        ])  # fmt: skip
    except Refused as refused:
        session.uncertain.difference_update(shards)
        if refused.index == 0:
            raise GenerationChanged from refused
        if refused.reason is Reason.EXISTS:
            return False
        raise
    # One transaction made them all, in one session: what holds for one holds for all.
    stat = await session.link.stat(tree.lease(shards[0]))
    if stat is None or stat.session != session.number:
        raise LinkLost
    session.uncertain.difference_update(shards)
    for shard in shards:
        session.held[shard] = Lease(shard=shard, generation=generation.number, token=stat.made_by)
    return True


async def _delete(session: Session, shards: list[int]) -> bool:
    session.uncertain.update(shards)
    try:
        await commit(session, [Delete(session.tree.lease(shard)) for shard in shards])
    except Refused:
        if len(shards) > 1:
            return False
    session.uncertain.difference_update(shards)
    for shard in shards:
        session.held.pop(shard, None)
    return True


def _batches(shards: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(shards), size):
        yield shards[first : first + size]
