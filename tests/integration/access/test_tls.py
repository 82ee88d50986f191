"""TLS and client certificates on real nodes."""

import asyncio
import ssl
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest

from server.config import load_config
from server.domain.access import parse_scopes
from server.domain.errors import InvalidInput
from server.node_access import NodeAccess
from server.store import tokens
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.access import Site, bearer, granted
from tests.support.nodes import running_node, running_nodes
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, Tls, Unauthenticated, Unavailable, Worker


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.new(tmp_path / "tls")


async def test_a_cluster_with_tls_and_tokens_serves_its_workers(database: str, tmp_path: Path, site: Site) -> None:
    token = await granted(database, "default:submit,work,read")
    admin = bearer(await granted(database, "*:admin"))
    async with running_nodes(database, tmp_path, 2, **site.node_settings()) as nodes:
        worker = Worker(nodes[0].address, name="w", ca=site.ca, token=token, watchdog=0)
        worker.handler("mail")(lambda payload: "sent")
        await asyncio.to_thread(worker.start)
        try:
            await eventually(lambda: len(worker.nodes) == 2, what="a session to each node")
            async with AsyncClient(nodes[1].address, ca=site.ca, token=token) as client:
                for number in range(10):
                    job = await client.submit("mail", concurrency_key=f"k{number}")
                    assert (await client.wait(job.job_id, timeout=20)).result == b'"sent"'
        finally:
            await asyncio.to_thread(worker.stop, 0)
        credentials = grpc.ssl_channel_credentials(site.ca.read_bytes())
        for node in nodes:
            async with grpc.aio.secure_channel(node.address, credentials) as channel:
                change = await AdminServiceStub(channel).Rebalance(
                    pb.RebalanceRequest(dry_run=True), metadata=admin, timeout=10.0
                )
                assert change.leader
        async with AsyncClient(nodes[0].address, token=token, timeout=2) as plain:
            with pytest.raises(Unavailable):
                await plain.get(1)
        async with AsyncClient(nodes[0].address, ca=site.ca) as nobody:
            with pytest.raises(Unauthenticated):
                await nobody.get(1)


async def test_a_certificate_is_an_identity(database: str, tmp_path: Path, site: Site) -> None:
    """The nodes ask for certificates, and show theirs to each other."""
    cert, key = site.issue("crew", "crew.example.org")
    tls = Tls(ca=site.ca, cert=cert, key=key)
    settings = site.node_settings(client_ca=True)
    async with running_nodes(database, tmp_path, 2, **settings) as nodes:
        async with AsyncClient(nodes[0].address, tls=tls) as client:
            with pytest.raises(Unauthenticated, match="no rights are granted to a certificate"):
                await client.submit("mail")
            await tokens.create(
                nodes[0].database, "crew", parse_scopes(["default:submit,work"]), subject="crew.example.org"
            )
            worker = Worker(nodes[0].address, name="w", tls=tls, watchdog=0)
            worker.handler("mail")(lambda payload: None)
            await asyncio.to_thread(worker.start)
            try:
                await eventually(lambda: len(worker.nodes) == 2, what="a session to each node")
                await client.submit("mail")
                rows = await nodes[0].database.run("SELECT identity FROM workers WHERE name = 'w'")
                assert rows == [("certificate:crew",)]
            finally:
                await asyncio.to_thread(worker.stop, 0)
        async with AsyncClient(nodes[0].address, ca=site.ca, timeout=2) as without:
            with pytest.raises(Unavailable):
                await without.submit("mail")


async def test_a_certificate_of_another_authority_gets_no_connection(database: str, tmp_path: Path, site: Site) -> None:
    foreign = Site.new(tmp_path / "foreign")
    cert, key = foreign.issue("crew", "crew.example.org")
    async with running_node(database, tmp_path, **site.node_settings(client_ca=True)) as node:
        await tokens.create(node.database, "crew", parse_scopes(["*:admin"]), subject="crew.example.org")
        async with AsyncClient(node.address, tls=Tls(ca=site.ca, cert=cert, key=key), timeout=2) as client:
            with pytest.raises(Unavailable):
                await client.submit("mail")


async def test_certificates_are_taken_in_when_the_files_change(database: str, tmp_path: Path, site: Site) -> None:
    token = await granted(database, "default:submit")

    def served(address: str) -> str:
        host, _, port = address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)

    settings = site.node_settings() | {"http_listen": "127.0.0.1:0"}
    async with running_node(database, tmp_path, **settings) as node:
        certificates = node.access.certificates
        assert certificates is not None
        before = [await asyncio.to_thread(served, one) for one in (node.address, node.http.address)]
        assert before[0] == before[1]
        peers = certificates.channel_credentials
        async with AsyncClient(node.address, ca=site.ca, token=token) as client:
            await client.submit("mail")
            site.issue("node", "127.0.0.1", "localhost")
            assert certificates.look()
            assert not certificates.look()
            after = [await asyncio.to_thread(served, one) for one in (node.address, node.http.address)]
            assert after[0] == after[1] != before[0]
            assert certificates.channel_credentials is not peers
            # What is connected stays connected.
            await client.submit("mail")
        # Half a change changes nothing.
        site.spoil("node")
        assert not certificates.look()
        assert await asyncio.to_thread(served, node.address) == after[0]
        async with AsyncClient(node.address, ca=site.ca, token=token) as client:
            await client.submit("mail")


async def test_the_http_port_speaks_tls_as_well(database: str, tmp_path: Path, site: Site) -> None:
    settings = site.node_settings(client_ca=True) | {"http_listen": "127.0.0.1:0"}
    context = ssl.create_default_context(cafile=str(site.ca))

    def read(url: str) -> int:
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return int(answer.status)

    async with running_node(database, tmp_path, **settings) as node:
        # Probes have no certificate, and are asked for none.
        assert await asyncio.to_thread(read, f"https://{node.http.address}/readyz") == 200
        with pytest.raises(OSError, match=r"(?i)reset|disconnect|closed|remote end"):
            await asyncio.to_thread(read, f"http://{node.http.address}/readyz")


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_ca"])
@pytest.mark.parametrize("content", [None, "no PEM"])
def test_files_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, site: Site, name: str, content: str | None
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    settings = site.node_settings() | {name: str(file)}
    with pytest.raises(InvalidInput) as refused:
        NodeAccess(load_config(settings, {}))
    assert refused.value.field == name


def test_a_key_of_another_certificate_is_refused(site: Site) -> None:
    settings = site.node_settings()
    _, key = site.issue("other", "other")
    with pytest.raises(InvalidInput, match="is not the key of"):
        NodeAccess(load_config(settings | {"tls_key": str(key)}, {}))
