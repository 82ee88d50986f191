"""The `meta` znode: whose tree this is, and the generation of the leases in it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from shard_manager.errors import ForeignCluster
from shard_manager.zookeeper.link import Link
from shard_manager.zookeeper.messages import (
    Create,
    LinkDown,
    LinkRefused,
    Refused,
    SetData,
)
from shard_manager.zookeeper.tree import FORMAT, Tree

#: Called with the generation that is in use (0: none yet), returns the one to use: the same if no newer one was ever
#: drawn, else a newly drawn one, greater than all before. The numbers live where the fences do, in PostgreSQL, so that
#: they outlive ZooKeeper and are shared with other kinds of coordinators.
DrawGeneration: TypeAlias = Callable[[int], Awaitable[int]]

_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Generation:
    """The generation in force, and the version of `meta` that says so."""

    number: int
    version: int


async def look_at_tree(link: Link, tree: Tree, cluster_id: str) -> None:
    """Raise `ForeignCluster` if the tree belongs to another cluster; nothing is written."""
    found = await link.get(tree.meta)
    if found is not None:
        owner, _ = _decode(found[0])
        if owner != cluster_id:
            raise ForeignCluster(tree.root, ours=cluster_id, theirs=owner)


async def settle_generation(link: Link, tree: Tree, cluster_id: str, draw: DrawGeneration) -> Generation:
    """Make the tree if it is missing and return the generation in force, a new one if the old is outdated.

    Raises `ForeignCluster` if the tree belongs to another cluster.
    """
    for attempt in range(_ATTEMPTS):
        found = await link.get(tree.meta)
        if found is None:
            await _make_folders(link, tree)
            number, version = await draw(0), 0
            write: Create | SetData = Create(tree.meta, _encode(cluster_id, number))
        else:
            data, stat = found
            owner, settled = _decode(data)
            if owner != cluster_id:
                raise ForeignCluster(tree.root, ours=cluster_id, theirs=owner)
            # Settled by somebody else in this very moment: what was drawn since was drawn for the same purpose.
            number = settled if attempt else await draw(settled)
            if number == settled:
                return Generation(settled, stat.version)
            version = stat.version + 1
            write = SetData(tree.meta, _encode(cluster_id, number), stat.version)
        try:
            await link.commit([write])
        except Refused:
            continue
        return Generation(number, version)
    raise LinkDown("the generation kept changing while this node tried to settle it")


async def _make_folders(link: Link, tree: Tree) -> None:
    for folder in tree.folders():
        if await link.stat(folder) is None:
            try:
                await link.commit([Create(folder, b"")])
            except Refused:
                continue  # made by somebody else meanwhile


def _encode(cluster_id: str, generation: int) -> bytes:
    return json.dumps({"format": FORMAT, "cluster_id": cluster_id, "generation": generation}).encode()


def _decode(data: bytes) -> tuple[str, int]:
    try:
        document = json.loads(data)
        return str(document["cluster_id"]), int(document["generation"])
    except (ValueError, KeyError, TypeError) as error:
        raise LinkRefused(f"the znode `meta` is not one of this program ({data[:40]!r}); use another path") from error
