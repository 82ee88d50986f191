"""A broker that tests leave alone, and a node that publishes to it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from server.app import Node
from tests.support.kafka import KafkaBroker
from tests.support.nodes import running_node


@pytest.fixture(scope="package")
def broker() -> Iterator[KafkaBroker]:
    """The broker of these tests."""
    with KafkaBroker() as started:
        yield started


@pytest.fixture
async def node(broker: KafkaBroker, database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every shard."""
    async with running_node(database, tmp_path, kafka=broker.address, kafka_partitions="4") as node:
        yield node
