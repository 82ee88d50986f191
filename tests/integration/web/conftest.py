"""A node with its dashboard, and somebody who looks at it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.app import Node
from tests.support.nodes import running_node
from tests.support.visitor import Visitor
from worker_sdk import AsyncClient


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every shard, with an HTTP port."""
    async with running_node(database, tmp_path, http_listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[AsyncClient]:
    """A client of its API."""
    async with AsyncClient(node.address) as connected:
        yield connected


@pytest.fixture
def visitor(node: Node) -> Visitor:
    """Somebody without a browser."""
    return Visitor(node.http.address)
