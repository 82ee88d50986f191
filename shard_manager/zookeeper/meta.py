"""The `meta` znode: whose tree this is, and the generation of the leases in it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from shard_manager.errors import ForeignCluster
from shard_manager.zookeeper.link import Create, Link, LinkDown, LinkRefused, Refused, SetData
from shard_manager.zookeeper.tree import FORMAT, Tree

#: Called with the generation that is in use (0: none yet), returns the one to use: the same if no newer one was ever
#: drawn, else a newly drawn one, greater than all before. The numbers live where the fences do, in PostgreSQL, so that
#: they outlive ZooKeeper and are shared with other kinds of coordinators.
DrawGeneration: TypeAlias = Callable[[int], Awaitable[int]]

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Generation:
    """The generation in force, and the version of `meta` that says so."""

    number: int
    version: int


async def settle_generation(link: Link, tree: Tree, cluster_id: str, draw: DrawGeneration) -> Generation:
    """Make the tree if it is missing and return the generation in force, a new one if the old is outdated.

    Raises `ForeignCluster` if the tree belongs to another cluster.
    """
    for _ in range(_ATTEMPTS):
        found = await link.get(tree.meta)
        if found is None:
            await _make_folders(link, tree)
            write: Create | SetData = Create(tree.meta, _encode(cluster_id, await draw(0)))
        else:
            data, stat = found
            owner, number = _decode(data)
            if owner != cluster_id:
                raise ForeignCluster(tree.root, ours=cluster_id, theirs=owner)
            newest = await draw(number)
            if newest == number:
                return Generation(number, stat.version)
            write = SetData(tree.meta, _encode(cluster_id, newest), stat.version)
        try:
            await link.commit([write])
        except Refused:
            continue  # somebody else was faster
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
