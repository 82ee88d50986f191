"""What a worker answers to probes: its health follows its streams."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.integration.worker_sdk.conftest import Workers
from tests.support.scripted_server import ScriptedServer, assignment
from tests.support.waiting import eventually
from worker_sdk import ConfigurationError, Worker


def _ask(worker: Worker, path: str) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{worker.health_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()) if error.code == 503 else {}


async def ask(worker: Worker, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of a probe."""
    return await asyncio.to_thread(_ask, worker, path)


def a_worker(address: str, **settings: Any) -> Worker:
    worker = Worker(address, name="w", watchdog=0, **settings)

    @worker.handler("h")
    def handle(payload: object) -> None: ...

    return worker


async def test_readiness_follows_the_stream_and_liveness_does_not(node: ScriptedServer, workers: Workers) -> None:
    worker = a_worker(node.address, health_listen="127.0.0.1:0")
    session = await workers.connect(worker, node)

    async def ready() -> bool:
        return (await ask(worker, "/readyz"))[0] == 200

    await eventually(ready, what="the readiness of a connected worker")
    code, body = await ask(worker, "/readyz")
    assert (code, body["ready"], body["worker"], body["running"]) == (200, True, "w", 0)
    assert len(body["nodes"]) == 1
    await node.stop()
    del session

    async def cut_off() -> bool:
        return (await ask(worker, "/readyz"))[0] == 503

    await eventually(cut_off, what="the end of readiness")
    code, body = await ask(worker, "/readyz")
    assert (code, body["ready"], body["nodes"]) == (503, False, [])
    code, body = await ask(worker, "/healthz")
    assert (code, body["alive"]) == (200, True)
    assert (await ask(worker, "/nothing"))[0] == 404


async def test_a_draining_worker_is_alive_and_not_ready(node: ScriptedServer, workers: Workers) -> None:
    entered, let_go = threading.Event(), threading.Event()
    worker = Worker(node.address, name="w", watchdog=0, health_listen="127.0.0.1:0")

    @worker.handler("h")
    def handle(payload: object) -> None:
        entered.set()
        let_go.wait(60)

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "h"))
    assert await asyncio.to_thread(entered.wait, 30)
    stopping = asyncio.create_task(asyncio.to_thread(worker.stop, 60))

    async def draining() -> bool:
        return (await ask(worker, "/readyz"))[1].get("draining") is True

    try:
        await eventually(draining, what="the drain")
        assert (await ask(worker, "/readyz"))[0] == 503
        code, body = await ask(worker, "/healthz")
        assert (code, body["running"]) == (200, 1)
    finally:
        let_go.set()
        assert await stopping
    assert worker.health_port is None


def test_an_address_that_cannot_be_used_is_refused() -> None:
    for address in ("8081", "host:port", ":70000"):
        with pytest.raises(ConfigurationError, match=r"health_listen: .* is not HOST:PORT"):
            a_worker("127.0.0.1:9", health_listen=address).start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="health_listen: cannot listen on"):
            a_worker("127.0.0.1:9", health_listen=address).start()
