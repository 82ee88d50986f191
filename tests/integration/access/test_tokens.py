"""Tokens on real nodes: made, taken by all nodes, ended."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import pytest

from server.app import Node
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.access import bearer, granted
from tests.support.nodes import running_node, running_nodes
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, PermissionDenied, Unauthenticated, Worker

# Far above the second that nodes take, and far below what anybody would call an outage.
SOON_S = 10.0


class Admin:
    """Somebody with a token who orders things of a node."""

    def __init__(self, stub: AdminServiceStub, token: str) -> None:
        self._stub = stub
        self._metadata = bearer(token)

    async def create(self, holder: str, *scopes: str, **more: object) -> pb.CreateTokenResponse:
        request = pb.CreateTokenRequest(holder=holder, scopes=scopes, **more)  # type: ignore[arg-type]
        return await self._stub.CreateToken(request, metadata=self._metadata, timeout=10.0)

    async def revoke(self, token_id: int) -> pb.Token:
        return await self._stub.RevokeToken(pb.RevokeTokenRequest(id=token_id), metadata=self._metadata, timeout=10.0)

    async def tokens(self) -> dict[str, pb.Token]:
        answer = await self._stub.ListTokens(pb.ListTokensRequest(), metadata=self._metadata, timeout=10.0)
        return {token.holder: token for token in answer.tokens}


@pytest.fixture
async def nodes(database: str, tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes of a database with a token; the leader is either of them."""
    await granted(database, "nowhere:read", holder="nobody")
    async with running_nodes(database, tmp_path, 2) as nodes:
        yield nodes


@pytest.fixture
async def admin(nodes: list[Node], database: str) -> AsyncIterator[Admin]:
    async with grpc.aio.insecure_channel(nodes[0].address) as channel:
        yield Admin(AdminServiceStub(channel), await granted(database, "*:admin", holder="root"))


async def test_a_token_made_on_one_node_is_good_on_all_at_once_and_ends_on_all(nodes: list[Node], admin: Admin) -> None:
    made = await admin.create("shop", "default:submit,read")
    assert made.token.scopes == ["default:submit", "default:read"]
    assert (made.token.created_by, len(made.secret)) == ("token:root", 43)
    async with AsyncClient(nodes[1].address, token=made.secret) as client:
        # No grace, no waiting: who was just given a token may use it anywhere.
        job = await client.submit("mail")
        assert (await client.get(job.job_id)).handler == "mail"
        revoked = await admin.revoke(made.token.id)
        assert revoked.HasField("revoked_at")

        async def refused() -> bool:
            try:
                await client.get(job.job_id)
            except Unauthenticated as error:
                return error.reason == "TOKEN_UNKNOWN"
            return False

        await eventually(refused, timeout_s=SOON_S, what="the end of the token on the other node")
    async with AsyncClient(nodes[0].address, token=made.secret) as client:
        with pytest.raises(Unauthenticated):
            await client.get(job.job_id)
    assert "shop" not in await admin.tokens()


async def test_a_worker_whose_token_is_revoked_loses_its_sessions(nodes: list[Node], admin: Admin) -> None:
    first, second = await admin.create("crew", "default:work"), await admin.create("crew", "default:work")
    worker = Worker(nodes[0].address, name="w", token=first.secret, watchdog=0)
    worker.handler("mail")(lambda payload: None)
    await asyncio.to_thread(worker.start)
    try:
        await eventually(lambda: len(worker.nodes) == 2, what="a session to each node")
        await admin.revoke(first.token.id)
        await eventually(lambda: not worker.nodes, timeout_s=SOON_S, what="the end of both sessions")
    finally:
        await asyncio.to_thread(worker.stop, 0)
    # The holder's other token is another way in.
    again = Worker(nodes[0].address, name="w", token=second.secret, watchdog=0)
    again.handler("mail")(lambda payload: None)
    await asyncio.to_thread(again.start)
    try:
        await eventually(lambda: len(again.nodes) == 2, what="the sessions with the other token")
    finally:
        await asyncio.to_thread(again.stop, 0)


async def test_a_token_in_a_file_may_be_replaced_under_a_running_worker(
    nodes: list[Node], admin: Admin, tmp_path: Path
) -> None:
    first, second = await admin.create("crew", "default:work"), await admin.create("crew", "default:work")
    file = tmp_path / "token"
    file.write_text(first.secret + "\n")
    worker = Worker(nodes[0].address, name="w", token_file=file, watchdog=0)
    worker.handler("mail")(lambda payload: None)
    await asyncio.to_thread(worker.start)
    try:
        await eventually(lambda: len(worker.nodes) == 2, what="a session to each node")
        core = worker._core
        assert core is not None
        before = {session.stream for session in core._links.live}
        file.write_text(second.secret + "\n")
        await admin.revoke(first.token.id)

        def renewed() -> bool:
            live = {session.stream for session in core._links.live}
            return len(live) == 2 and not live & before

        # The same incarnation comes back, for it is of the same holder.
        await eventually(renewed, timeout_s=30, what="sessions with the new token")
        rows = await nodes[0].database.run("SELECT identity, ended_at IS NULL FROM workers WHERE name = 'w'")
        assert rows == [("token:crew", True)]
    finally:
        await asyncio.to_thread(worker.stop, 0)


async def test_a_token_ends_with_its_lifetime(nodes: list[Node], admin: Admin) -> None:
    made = await admin.create("guest", "default:read", lifetime=timedelta(seconds=2))
    async with AsyncClient(nodes[1].address, token=made.secret) as client:

        async def ended() -> bool:
            try:
                _ = [job async for job in client.list()]
            except Unauthenticated:
                return True
            return False

        await eventually(ended, timeout_s=SOON_S, what="the end of the token")
    assert (await admin.tokens())["guest"].HasField("expires_at")


async def test_orders_reach_the_leader_through_any_node(nodes: list[Node], admin: Admin, database: str) -> None:
    token = bearer(await granted(database, "*:admin"))
    for node in nodes:
        async with grpc.aio.insecure_channel(node.address) as channel:
            stub = AdminServiceStub(channel)
            change = await stub.Rebalance(pb.RebalanceRequest(dry_run=True), metadata=token, timeout=10.0)
            assert change.leader in ("node-a", "node-b")


async def test_nudges_go_between_nodes_that_ask_for_keys(nodes: list[Node], database: str) -> None:
    token = await granted(database, "default:submit,work,read")
    worker = Worker(nodes[0].address, name="w", token=token, watchdog=0)
    worker.handler("mail")(lambda payload: None)
    await asyncio.to_thread(worker.start)
    try:
        await eventually(lambda: len(worker.nodes) == 2, what="a session to each node")
        async with AsyncClient(nodes[0].address, token=token) as client:
            jobs = [await client.submit("mail", concurrency_key=f"k{number}") for number in range(20)]
            for job in jobs:
                assert (await client.wait(job.job_id, timeout=20)).state.name == "COMPLETED"
        told, dropped = nodes[0].peers.news_counts()
        assert told > 0
        assert dropped == 0
    finally:
        await asyncio.to_thread(worker.stop, 0)


async def test_the_http_port_takes_the_same_tokens(database: str, tmp_path: Path) -> None:
    reader, submitter = await granted(database, "*:read"), await granted(database, "*:submit")

    def status(node: Node, path: str, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{node.http.address}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    async with running_node(database, tmp_path, http_listen="127.0.0.1:0") as node:
        cases = [
            ("/healthz", "", 200),
            ("/readyz", "", 200),
            ("/metrics", "", 401),
            ("/metrics", "x" * 43, 401),
            ("/metrics", submitter, 403),
            ("/metrics", reader, 200),
        ]
        for path, token, code in cases:
            assert await asyncio.to_thread(status, node, path, token) == code, path


async def test_the_dashboard_takes_the_same_tokens(database: str, tmp_path: Path) -> None:
    own, foreign = await granted(database, "default:read"), await granted(database, "other:admin")

    def page(node: Node, token: str) -> tuple[int, str]:
        """Status and path of what a browser with this session is shown."""
        headers = {"Cookie": f"shardwheel_token={token}"} if token else {}
        request = urllib.request.Request(f"http://{node.http.address}/ns/default/jobs", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status), urlsplit(answer.url).path
        except urllib.error.HTTPError as error:
            return error.code, urlsplit(error.url or "").path

    async with running_node(database, tmp_path, http_listen="127.0.0.1:0") as node:
        assert await asyncio.to_thread(page, node, "") == (200, "/login")
        assert await asyncio.to_thread(page, node, "x" * 43) == (200, "/login")
        assert await asyncio.to_thread(page, node, foreign) == (403, "/ns/default/jobs")
        assert await asyncio.to_thread(page, node, own) == (200, "/ns/default/jobs")


async def test_what_a_token_may_not_is_said_with_right_and_namespace(nodes: list[Node], database: str) -> None:
    token = await granted(database, "default:submit", holder="shop")
    async with AsyncClient(nodes[0].address, token=token) as client:
        with pytest.raises(PermissionDenied, match="token:shop has no right to read in namespace 'default'") as refused:
            await client.get(1)
    assert (refused.value.reason, refused.value.metadata["right"]) == ("RIGHT_MISSING", "read")
    assert token not in str(refused.value)
