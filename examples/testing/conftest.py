from collections.abc import Iterator

import pytest
from emails import worker

from worker_sdk.testing import LocalServer


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server, server.running(worker):
        yield server
