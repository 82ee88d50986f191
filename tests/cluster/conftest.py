"""Clusters that are ended after the test, with the ends of their logs shown if it failed."""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.cluster import QUICK, Cluster, StartCluster
from tests.cluster.zookeeper import ZookeeperSite
from tests.support.postgres import PostgresServer

SEED_VARIABLE = "SHARDWHEEL_CHAOS_SEED"


@pytest.fixture
async def start_cluster(postgres: PostgresServer, database: str, tmp_path: Path) -> AsyncIterator[StartCluster]:
    """Start a cluster that goes away with the test."""
    async with contextlib.AsyncExitStack() as stack:
        clusters: list[Cluster] = []

        async def start(
            *,
            nodes: int = 1,
            workers: int = 2,
            settings: Mapping[str, str] = QUICK,
            worker_grace_s: float = 5.0,
            zookeeper: ZookeeperSite | None = None,
            relayed: bool = False,
            secure: bool = False,
        ) -> Cluster:
            cluster = Cluster(
                tmp_path, postgres, database, nodes=nodes, workers=workers, settings=settings,
                worker_grace_s=worker_grace_s, zookeeper=zookeeper, relayed=relayed, secure=secure,
            )  # fmt: skip
            clusters.append(cluster)
            return await stack.enter_async_context(cluster)

        yield start
        for cluster in clusters:
            # Shown by pytest if the test failed.
            print(f"files are in {cluster.folder}\n{cluster.tails()}")


@pytest.fixture
def seed() -> int:
    """The seed of everything that is drawn: a new one, unless the environment names one. Printed, to repeat a run."""
    given = os.environ.get(SEED_VARIABLE)
    chosen = int(given) if given else random.SystemRandom().randrange(1_000_000)
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen
