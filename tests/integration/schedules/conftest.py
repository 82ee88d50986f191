"""Fixtures for tests of schedules on a real database."""

from collections.abc import AsyncIterator

import pytest

from tests.support.schedules import Bench, open_bench


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    """The stores of a node on a fresh database, with one handler."""
    async with open_bench(database) as opened:
        yield opened
