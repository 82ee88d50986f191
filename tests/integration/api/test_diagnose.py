"""Diagnose on real databases: what a role without rights sees, and what nodes tell of each other."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc.aio
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from server.app import Node
from server.domain.diagnosis import HolderKind
from server.store.horizon import oldest_holders
from server.store.migrate import migrate
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.diagnosis_pb2 import Diagnosis, Finding
from tests.integration.api.node import ApiNode
from tests.support.nodes import running_nodes
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

ROLE = f"limited_{os.getpid()}"


@pytest.fixture
async def limited(postgres: PostgresServer) -> AsyncIterator[str]:
    """The URI of a migrated database whose owner is no superuser, as the docs ask for it."""
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(ROLE)))
        name = postgres.create_database()
        owner = sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(ROLE))
        connection.execute(owner)
        dsn = make_conninfo(postgres.dsn(name), user=ROLE, password="secret")
        await migrate(dsn)
        yield dsn
        postgres.drop_database(name)
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(ROLE)))


@asynccontextmanager
async def a_forgotten_transaction(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """A session that keeps a snapshot."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT 1")
        yield connection


def found(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    assert [check.trouble for check in diagnosis.checks if check.trouble] == []
    return {(finding.check, finding.subject) for finding in diagnosis.findings}


async def test_a_role_without_rights_sees_all_but_the_sessions_of_others(
    postgres: PostgresServer, limited: str
) -> None:
    superuser = make_conninfo(postgres.dsn("postgres"), dbname=psycopg.conninfo.conninfo_to_dict(limited)["dbname"])
    async with ApiNode(limited) as node, a_forgotten_transaction(superuser) as session:
        pid = f"pid {session.info.backend_pid}"

        async def holds() -> bool:
            return any(
                pid in one.what and one.kind is HolderKind.SESSION and one.open_s is not None and one.open_s > 0
                for one in await oldest_holders(node.database)
            )

        assert ("transactions", "") in found(await node.admin.Diagnose(pb.DiagnoseRequest()))
        assert not await holds()
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(ROLE)))
        assert ("transactions", "") not in found(await node.admin.Diagnose(pb.DiagnoseRequest()))
        await eventually(holds, what="the session in the view of the role")


async def move_the_clock(node: Node) -> None:
    """Have a node see the database's clock far ahead of its own, whatever its statements tell meanwhile."""
    while True:
        now_s = time.monotonic()
        node.engine.clock.observe(datetime.now(UTC) + timedelta(seconds=100), now_s, now_s)
        await asyncio.sleep(0.001)


async def test_a_clock_that_is_off_is_found_on_whichever_node(database: str, tmp_path: Path) -> None:
    async with (
        running_nodes(database, tmp_path, 2) as [one, other],
        grpc.aio.insecure_channel(one.address) as channel,
    ):
        admin = AdminServiceStub(channel)
        findings: list[Finding] = []

        async def told() -> bool:
            diagnosis = await admin.Diagnose(pb.DiagnoseRequest())
            findings[:] = [finding for finding in diagnosis.findings if finding.check == "clock"]
            return bool(findings)

        moving = asyncio.create_task(move_the_clock(other))
        try:
            await eventually(told, timeout_s=60, what="the finding")
        finally:
            moving.cancel()
        [finding] = findings
        assert (finding.subject, finding.severity) == ("node node-b", Finding.WARNING)
        assert "behind the database's" in finding.summary
