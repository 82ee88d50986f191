"""Workers and their watchdog over TLS."""

import asyncio
from pathlib import Path

import grpc
import pytest
import trustme

from tests.integration.worker_sdk.conftest import WorkerProcess, Workers
from tests.support.scripted_server import ScriptedServer, assignment
from tests.support.waiting import eventually
from worker_sdk import Worker


@pytest.fixture
def authority() -> trustme.CA:
    """A certificate authority for this test."""
    return trustme.CA()


def secure_node(authority: trustme.CA) -> ScriptedServer:
    certificate = authority.issue_cert("localhost")
    pair = (certificate.private_key_pem.bytes(), b"".join(item.bytes() for item in certificate.cert_chain_pems))
    return ScriptedServer(credentials=grpc.ssl_server_credentials([pair]))


async def test_a_worker_and_its_watchdog_speak_tls(
    authority: trustme.CA, worker_process: WorkerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    async with secure_node(authority) as node:
        await worker_process.start(node, SHARDWHEEL_TEST_CA=str(path), SHARDWHEEL_TEST_TOKEN="secret")
        session = await node.next_session()
        assert node.metadata["authorization"] == "Bearer secret"
        node.metadata.clear()
        await session.send_jobs(assignment(1, "hold.lock", payload=b"1.5"))
        await eventually(lambda: node.keep_alives)
        assert node.metadata["authorization"] == "Bearer secret"
        await session.expect_results(1)
        worker_process.end()


async def test_a_node_without_a_trusted_certificate_gets_no_session(
    authority: trustme.CA, workers: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    async with secure_node(authority) as node:
        worker = Worker(node.address, name="w", ca=path, watchdog=0)
        worker.handler("a")(lambda payload: None)
        await workers.start(worker)
        await eventually(lambda: "cannot reach a node" in caplog.text)
        assert not node.hellos
        await asyncio.to_thread(worker.stop)
