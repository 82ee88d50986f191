"""Partitions: between a node or a worker and somebody else, in both directions or in one, silent or with resets."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import (
    Blow,
    Fault,
    Need,
    Strike,
    Times,
    around_a_session,
    beyond_a_session,
    register,
)
from tests.cluster.network import CLIENT, Pair

Pairs = Callable[[Cluster, random.Random], Sequence[Pair]]


def _names(cluster: Cluster) -> list[str]:
    return [node.name for node in cluster.nodes]


def _node_and_zookeeper(cluster: Cluster, draw: random.Random) -> list[Pair]:
    node = draw.choice(_names(cluster))
    return [(node, place.target) for place in cluster.places.zookeeper]


def _node_and_postgres(cluster: Cluster, draw: random.Random) -> list[Pair]:
    node = draw.choice(_names(cluster))
    return [(node, place.target) for place in cluster.places.postgres]


def _two_nodes(cluster: Cluster, draw: random.Random) -> list[Pair]:
    if len(cluster.nodes) < 2:
        return []
    one, other = draw.sample(_names(cluster), 2)
    return [(one, other), (other, one)]


def _worker_and_node(cluster: Cluster, draw: random.Random) -> list[Pair]:
    worker = draw.choice([worker.name for worker in cluster.workers])
    return [(worker, draw.choice(_names(cluster)))]


def _worker_and_all(cluster: Cluster, draw: random.Random) -> list[Pair]:
    worker = draw.choice([worker.name for worker in cluster.workers])
    return [(worker, node) for node in _names(cluster)]


def _client_and_node(cluster: Cluster, draw: random.Random) -> list[Pair]:
    return [(CLIENT, draw.choice(_names(cluster)))]


def _node_and_all(cluster: Cluster, draw: random.Random) -> list[Pair]:
    """Everything to and from a node."""
    node = draw.choice(_names(cluster))
    others = [*(process.name for process in cluster.processes if process.name != node), CLIENT]
    targets = [place.target for place in (*cluster.places.nodes, *cluster.places.postgres, *cluster.places.zookeeper)]
    return [*((other, node) for other in others), *((node, target) for target in targets if target != node)]


def _names_of(pairs: Sequence[Pair]) -> list[str]:
    return [f"{source}→{target}" for source, target in pairs]


def _silence(choose: Pairs) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        pairs = choose(cluster, blow.draw)
        assert cluster.network is not None
        async with cluster.network.held(pairs):
            yield _names_of(pairs)

    return strike


def _one_way(choose: Pairs) -> Strike:
    """Lose everything in one direction, drawn for all pairs together."""

    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        draw = blow.draw
        pairs = choose(cluster, draw)
        forth = draw.random() < 0.5
        assert cluster.network is not None
        async with cluster.network.held(pairs, forth=forth, back=not forth):
            yield _names_of(pairs)

    return strike


def _resets(choose: Pairs) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        pairs = choose(cluster, blow.draw)
        assert cluster.network is not None
        async with cluster.network.cut(pairs):
            yield _names_of(pairs)

    return strike


@asynccontextmanager
async def _slow(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Delay everything to and from a node."""
    draw = blow.draw
    pairs = _node_and_all(cluster, draw)
    assert cluster.network is not None
    async with cluster.network.slow(pairs, draw.uniform(0.02, 0.3)):
        yield _names_of(pairs[:1])


def _blink(draw: random.Random, times: Times) -> float:
    """Hold a fault so shortly that nobody has to be taken for dead."""
    return draw.uniform(0.1, 1.5)


def _partition(kind: str, strike: Strike, hold_s: Callable[[random.Random, Times], float], *needs: Need) -> str:
    return register(Fault(kind=kind, strike=strike, hold_s=hold_s, needs=frozenset({Need.PROXIES, *needs}))).kind


NODE_ZOOKEEPER: Final = _partition(
    "partition_node_zookeeper", _silence(_node_and_zookeeper), beyond_a_session, Need.ZOOKEEPER
)
NODE_ZOOKEEPER_ONE_WAY: Final = _partition(
    "partition_node_zookeeper_one_way", _one_way(_node_and_zookeeper), around_a_session, Need.ZOOKEEPER
)
NODE_ZOOKEEPER_RESETS: Final = _partition(
    "resets_node_zookeeper", _resets(_node_and_zookeeper), around_a_session, Need.ZOOKEEPER
)
NODE_POSTGRES: Final = _partition("partition_node_postgres", _silence(_node_and_postgres), around_a_session)
NODE_POSTGRES_ONE_WAY: Final = _partition(
    "partition_node_postgres_one_way", _one_way(_node_and_postgres), around_a_session
)
NODE_POSTGRES_RESETS: Final = _partition("resets_node_postgres", _resets(_node_and_postgres), around_a_session)
NODE_NODE: Final = _partition("partition_node_node", _silence(_two_nodes), around_a_session)
NODE_NODE_ONE_WAY: Final = _partition("partition_node_node_one_way", _one_way(_two_nodes), around_a_session)
WORKER_NODE: Final = _partition("partition_worker_node", _silence(_worker_and_node), around_a_session)
WORKER_NODE_ONE_WAY: Final = _partition("partition_worker_node_one_way", _one_way(_worker_and_node), around_a_session)
WORKER_NODE_RESETS: Final = _partition("resets_worker_node", _resets(_worker_and_node), around_a_session)
WORKER_ALL: Final = _partition("partition_worker_all", _silence(_worker_and_all), around_a_session)
CLIENT_NODE: Final = _partition("partition_client_node", _silence(_client_and_node), around_a_session)
NODE_ALONE: Final = _partition("partition_node_all", _silence(_node_and_all), around_a_session)
BLINK: Final = _partition("blink_node_all", _silence(_node_and_all), _blink)
SLOW_NODE: Final = _partition("slow_node", _slow, around_a_session)
