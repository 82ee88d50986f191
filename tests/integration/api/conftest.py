"""Fixtures of the API's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.api.node import ApiNode, Fleet


@pytest.fixture
async def node(database: str) -> AsyncIterator[ApiNode]:
    """A node's API on a fresh database."""
    async with ApiNode(database) as running:
        yield running


@pytest.fixture
async def fleet(node: ApiNode) -> Fleet:
    """Owner of all shards, and a worker."""
    return await Fleet.start(node.database)
