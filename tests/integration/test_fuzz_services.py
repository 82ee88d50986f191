"""Whatever is sent to whichever method of a node, the answer is one that the API knows, and the node goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.app import Node
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.fuzzing import Method, methods, requests
from tests.support.nodes import running_node
from tests.support.raw_worker import raw_worker
from tests.support.thoroughness import examples
from tests.support.waiting import eventually

METHODS: Final = methods()
# What no request may lead to, whatever it holds.
WRONG: Final = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED"}
# Calls that wait, or never end by themselves, are cut off by their deadline.
PATIENCE_S: Final = 0.2
DUE: Final = "SELECT count(*) FROM jobs WHERE namespace_id = 1 AND due_at <= now()"


@pytest.fixture
async def node(database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Node]:
    """A whole node. After the test it still runs every job that is due, and nothing was logged as an error of ours."""
    async with running_node(database, tmp_path) as node:
        with caplog.at_level(logging.ERROR):
            yield node
            await steer_back(node)
            await runs_what_is_due(node)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def steer_back(node: Node) -> None:
    """Take back orders that keep jobs from running."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        admin = AdminServiceStub(channel)
        await admin.UndrainNode(admin_pb.UndrainNodeRequest(node=node.config.node), timeout=20)
        await admin.ResumeRebalance(admin_pb.ResumeRebalanceRequest(), timeout=20)
    await node.database.run("UPDATE handlers SET paused = false", api=True)


async def runs_what_is_due(node: Node) -> None:
    """Serve all handlers until nothing that is due is left."""
    rows = await node.database.fetch("SELECT name FROM handlers WHERE namespace_id = 1")
    async with raw_worker(node.address, {name: 50 for (name,) in rows} | {"h": 50}, name="last") as worker:

        async def done() -> bool:
            worker.complete(list(worker.jobs))
            worker.jobs.clear()
            return not (await node.database.fetch(DUE))[0][0]

        await eventually(done, timeout_s=60, what="the end of all due jobs")


async def status(channel: grpc.aio.Channel, method: Method, sent: list[bytes]) -> grpc.StatusCode:
    """Make a call of any kind and return its status."""

    async def stream() -> AsyncIterator[bytes]:
        for message in sent:
            yield message
        if method.streams_responses:
            await asyncio.sleep(PATIENCE_S)

    slow = method.streams_responses or method.path.endswith("/WaitJob")
    timeout = PATIENCE_S if slow else 20.0
    anything: Any = channel
    if method.streams_responses:
        call = anything.stream_stream(method.path)(stream(), timeout=timeout)
    elif method.streams_requests:
        call = anything.stream_unary(method.path)(stream(), timeout=timeout)
    else:
        call = anything.unary_unary(method.path)(sent[0], timeout=timeout)
    code: grpc.StatusCode = await call.code()
    return code


def wrong_answers(node: Node) -> list[tuple[str, str]]:
    """The calls that the node itself has ended in a wrong way; to a client that still sends, others look so, too."""
    return [
        (sample.labels["method"], sample.labels["code"])
        for family in node.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("code") in WRONG and sample.value
    ]


@settings(
    max_examples=examples(1250),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_every_method_answers_whatever_it_is_sent(node: Node, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(METHODS), label="method")
    sent = data.draw(requests(method), label="requests")
    async with grpc.aio.insecure_channel(node.address) as channel:
        code = await status(channel, method, sent)
    assert wrong_answers(node) == [], sent
    assert code.name not in WRONG or method.streams_requests, (method.path, sent)


def test_every_service_is_among_them() -> None:
    services = {method.path.split("/")[1].rpartition(".")[2] for method in METHODS}
    assert services == {"JobService", "ScheduleService", "AdminService", "WorkerService", "PeerService"}
    assert len(METHODS) > 35
