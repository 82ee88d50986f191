"""A database that is reached over TLS, and whose certificate is checked."""

import asyncio
from pathlib import Path

import pytest

from tests.support.access import Site
from tests.support.commands import shardwheel
from tests.support.nodes import running_node, submit
from tests.support.postgres import PostgresServer
from tests.support.tls_postgres import tls_postgres


async def test_a_node_whose_database_is_verified(postgres: PostgresServer, empty_database: str, tmp_path: Path) -> None:
    site = Site.new(tmp_path / "tls")
    async with tls_postgres(postgres.port, *site.issue("postgres", "127.0.0.1")) as front:
        uri = front.dsn(empty_database, site.ca)
        variables = {"SHARDWHEEL_DATABASE": uri}
        migrated = await asyncio.to_thread(shardwheel, "migrate", folder=tmp_path, variables=variables)
        assert migrated.returncode == 0, migrated.stderr
        async with running_node(uri, tmp_path / "node") as node:
            assert await submit(node, "mail")
        assert front.encrypted > 8, "the node's own connections go this way"


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_database_that_cannot_be_verified_is_refused_with_the_reason(
    postgres: PostgresServer, database: str, tmp_path: Path, wrong: str
) -> None:
    site = Site.new(tmp_path / "tls")
    name = "db.example.org" if wrong == "name" else "127.0.0.1"
    ca = Site.new(tmp_path / "foreign").ca if wrong == "authority" else site.ca
    reason = "does not match host name" if wrong == "name" else "certificate verify failed"
    async with tls_postgres(postgres.port, *site.issue("postgres", name)) as front:
        variables = {"SHARDWHEEL_DATABASE": front.dsn(database, ca), "SHARDWHEEL_DATA_DIR": str(tmp_path / "data")}
        for command in ("migrate", "serve"):
            ended = await asyncio.to_thread(shardwheel, command, folder=tmp_path, variables=variables)
            assert ended.returncode == 1, ended.stderr
            assert reason in ended.stderr
            assert "--database" in ended.stderr
