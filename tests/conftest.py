"""Fixtures for all tests: a PostgreSQL server for the session, a fresh database for each test that asks for one; a
ZooKeeper for the session."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from tests.support import thoroughness
from tests.support.postgres import PostgresServer
from tests.support.zookeeper import shared_server

thoroughness.choose()

# The rooms with the longest tests: their tests are started first, so that none runs on alone at the end.
_LONG = ("cluster", "clients", "integration", "e2e", "contract")
_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by their rooms."""
    rooms = {item: item.path.relative_to(_TESTS).parts[0] for item in items}
    items.sort(key=lambda item: _LONG.index(rooms[item]) if rooms[item] in _LONG else len(_LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Let one process run all tests of a file, whose fixtures they share; and one all with clusters of processes, since
    two of those at once are too much for a small machine. With `--dist loadscope`; the other ways are as ever."""
    if config.getvalue("dist") != "loadscope":
        return None
    from tests.support.scheduling import FileScheduling

    return FileScheduling(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's PostgreSQL. A test that stops or kills it leaves it running again."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres: PostgresServer) -> str:
    """The name of a database with the whole schema and no rows of ours."""
    # Imported here, so that tests which need no schema do not need the store either.
    from server.store.migrate import migrate

    name = postgres.create_database()
    asyncio.run(migrate(postgres.dsn(name)))
    return name


@pytest.fixture
async def database(postgres: PostgresServer, migrated_template: str) -> AsyncIterator[str]:
    """The connection URI of a fresh, migrated database."""
    from server.store.migrate import apply_role_settings

    name = postgres.create_database(template=migrated_template)
    try:
        await apply_role_settings(postgres.dsn(name))
        yield postgres.dsn(name)
    finally:
        postgres.drop_database(name)


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    """The connection URI of a fresh database without schema."""
    name = postgres.create_database()
    try:
        yield postgres.dsn(name)
    finally:
        postgres.drop_database(name)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """HOST:PORT of the session's ZooKeeper, for tests that leave it alone and keep to a path of their own."""
    with shared_server() as hosts:
        yield hosts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make captured output fit for the channel between test processes: some tests log lone surrogates on purpose."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
