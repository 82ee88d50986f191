"""Several nodes of one cluster in the test's own process, on a real database and real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import grpc.aio

from server.app import Node
from server.config import load_config
from server.domain.sharding import shard_of, shard_of_id
from shard_manager.timings import ManagerTimings
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.nodes import QUICK
from tests.support.waiting import eventually

_FOR_SESSION = ManagerTimings.for_session


def _soon(session_ttl: timedelta) -> ManagerTimings:
    """Timings by which shards are spread as soon as a node has joined."""
    return replace(_FOR_SESSION(session_ttl), settle=timedelta(0), poll=timedelta(milliseconds=200))


class Cluster:
    """Running nodes, which share all shards among them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def owner(self, job_id: int) -> Node:
        """The node that serves a job's shard."""
        [owner] = [node for node in self.nodes if shard_of_id(job_id) in node.engine.ownership.epochs]
        return owner

    def key_at(self, node: Node, prefix: str = "key") -> str:
        """A concurrency or dedupe key whose shard a node serves."""
        epochs = node.engine.ownership.epochs
        width = len(node.engine.ownership.partition_of)
        return next(key for n in range(10_000) if shard_of(width, "default", key := f"{prefix}-{n}") in epochs)

    def spread(self) -> bool:
        """Whether every shard is served by the node of the plan, and every node knows the plan."""
        shards = len(self.nodes[0].engine.ownership.partition_of)
        return all(
            (shard in node.engine.ownership.epochs) == (self.nodes[0].manager.planned_owner(shard) == node.config.node)
            and node.manager.planned_owner(shard) == self.nodes[0].manager.planned_owner(shard) is not None
            for node in self.nodes
            for shard in range(shards)
        ) and all(len(node.engine.ownership.epochs) >= shards // len(self.nodes) for node in self.nodes)


@contextlib.asynccontextmanager
async def running_cluster(database: str, folder: Path, names: str = "abc", **settings: str) -> AsyncIterator[Cluster]:
    """Started nodes `node-a`, `node-b`, …, of which each owns its share of the shards."""
    with mock.patch.object(ManagerTimings, "for_session", _soon):
        nodes = [
            Node(
                load_config(
                    {
                        **QUICK,
                        "database": database,
                        "listen": "127.0.0.1:0",
                        "data_dir": folder / name,
                        "node": f"node-{name}",
                        **settings,
                    },
                    {},
                )
            )
            for name in names
        ]
        started: list[Node] = []
        try:
            for node in nodes:
                await node.start()
                started.append(node)
            cluster = Cluster(nodes)
            await eventually(cluster.spread, timeout_s=30, what="shards at every node")
            yield cluster
        finally:
            await asyncio.gather(*(node.stop() for node in started))


@contextlib.asynccontextmanager
async def jobs_at(node: Node) -> AsyncIterator[JobServiceStub]:
    """The JobService of a node."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield JobServiceStub(channel)
