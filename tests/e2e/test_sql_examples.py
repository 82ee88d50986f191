"""The examples of `shardwheel.submit` run as they are, as a role that may do nothing else with Shardwheel."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from server.app import Node
from tests.support.commands import environment
from tests.support.nodes import running_node
from tests.support.raw_worker import raw_worker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "sql"


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


@pytest.fixture
async def application(node: Node) -> AsyncIterator[str]:
    """The URI of the database for a role of an application, with the grants that the docs name."""
    url = urlsplit(node.config.database)
    role = f"shop_{url.path[1:]}"
    statements = (
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT CREATE ON SCHEMA public TO {role}",
        f"GRANT USAGE ON SCHEMA shardwheel TO {role}",
        f"GRANT EXECUTE ON FUNCTION shardwheel.submit, shardwheel.submit_bytes TO {role}",
    )
    for statement in statements:
        await node.database.run(statement.encode(), api=True)
    try:
        yield f"postgresql://{role}:secret@{url.hostname}:{url.port}{url.path}"
    finally:
        for statement in (f"DROP OWNED BY {role}", f"DROP ROLE {role}"):
            await node.database.run(statement.encode(), api=True)


@pytest.mark.parametrize(("program", "order"), [("psycopg", 1), ("sqlalchemy", 2), ("django", 3)])
async def test_an_order_and_its_job(node: Node, application: str, program: str, order: int) -> None:
    async with raw_worker(node.address, {"order.ship": 1}) as worker:
        # In a process of its own, while the node needs this one's event loop.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            EXAMPLES / f"with_{program}.py",
            env=environment(APP_DATABASE=application, SHARDWHEEL_ADDRESS=node.address),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), timeout=60)
        assert process.returncode == 0, errors.decode()
        [job] = await worker.next_jobs(1)
        rows = await node.database.fetch("SELECT number, job_id FROM public.orders")
        assert [tuple(row) for row in rows] == [(order, job.job_id)]
        assert json.loads(job.payload) == {"order": order}
