"""Runs the contract on every coordinator."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from shard_manager.postgres import schema_sql
from tests.contract.coordinator.benches import Bench, MemoryBench, PostgresBench, ZookeeperBench
from tests.support.postgres import PostgresServer
from tests.support.zookeeper import ZookeeperServer


@pytest.fixture(scope="session")
def coordinator_template(postgres: PostgresServer) -> str:
    """The name of a database with the coordinator's tables alone."""
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name)) as connection:
        connection.execute(schema_sql().encode())
    return name


@pytest.fixture
def coordinator_database(postgres: PostgresServer, coordinator_template: str) -> Iterator[str]:
    """The connection URI of a fresh database with the coordinator's tables."""
    name = postgres.create_database(template=coordinator_template)
    try:
        yield postgres.dsn(name)
    finally:
        postgres.drop_database(name)


@pytest.fixture
async def postgres_bench(coordinator_database: str) -> AsyncIterator[PostgresBench]:
    bench = PostgresBench(coordinator_database)
    yield bench
    await bench.close()


@pytest.fixture(scope="session")
def breakable_zookeeper() -> Iterator[ZookeeperServer]:
    """A server that tests may stop, kill and pause, if they leave it running again."""
    with ZookeeperServer() as server:
        yield server


@pytest.fixture
async def breakable_bench(breakable_zookeeper: ZookeeperServer) -> AsyncIterator[ZookeeperBench]:
    bench = ZookeeperBench(breakable_zookeeper.hosts)
    yield bench
    await bench.close()


@pytest.fixture
async def zookeeper_bench(zookeeper: str) -> AsyncIterator[ZookeeperBench]:
    bench = ZookeeperBench(zookeeper)
    yield bench
    await bench.close()


@pytest.fixture(params=["memory", "postgres", "zookeeper"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        memory = MemoryBench()
        yield memory
        await memory.close()
    elif request.param == "postgres":
        # Taken by name, so that the runs in memory start no server.
        postgres = PostgresBench(request.getfixturevalue("coordinator_database"))
        yield postgres
        await postgres.close()
    else:
        zookeeper = ZookeeperBench(request.getfixturevalue("zookeeper"))
        yield zookeeper
        await zookeeper.close()
