"""A cluster of three nodes with a worker at each, and sweeps so far apart that none comes to the rescue."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.clusters import Cluster, running_cluster
from tests.support.raw_worker import RawWorker, raw_worker


@pytest.fixture
async def cluster(database: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes whose sweeps are far apart."""
    async with running_cluster(database, tmp_path, sweep="60s") as running:
        yield running


@pytest.fixture
async def workers(cluster: Cluster) -> AsyncIterator[dict[str, RawWorker]]:
    """A worker at each node and only there, by the node's name."""
    async with AsyncExitStack() as stack:
        yield {
            node.config.node: await stack.enter_async_context(
                raw_worker(node.address, {"h": 4}, name=f"at-{node.config.node}")
            )
            for node in cluster.nodes
        }
