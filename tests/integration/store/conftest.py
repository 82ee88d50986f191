"""The store's bench as a fixture."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.store.bench import Bench, bench


@pytest.fixture
async def store(database: str) -> AsyncIterator[Bench]:
    """One node's store on a fresh database."""
    async with bench(database) as made:
        yield made
