"""What the calls of consumers, and the choice of a dispatch, refuse."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from server.app import Node
from shardwheel.v1 import admin_service_pb2 as admin
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.integration.kafka.consumer import Caller
from tests.support.kafka import Published, handler_name, publish
from tests.support.nodes import running_node
from tests.support.raw_worker import raw_worker

GOOD = {"worker": "w", "incarnation": 1, "attempts": [pb.AttemptToStart(attempt=pb.AttemptRef(job_id=4096, claim=1))]}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"worker": ""}, "worker"),
        ({"worker": "w" * 201}, "worker"),
        ({"incarnation": 0}, "incarnation"),
        ({"namespace": "No"}, "namespace"),
        ({"attempts": []}, "attempts"),
        ({"attempts": [pb.AttemptToStart()]}, "attempts[0].attempt.job_id"),
        ({"attempts": GOOD["attempts"] * 1001}, "attempts"),  # type: ignore[operator]
        (
            {"attempts": [pb.AttemptToStart(attempt=pb.AttemptRef(job_id=1, claim=1), with_payload=True)] * 9},
            "attempts",
        ),
    ],
)
async def test_starts_are_refused_with_field_and_remedy(node: Node, fields: dict[str, object], field: str) -> None:
    build: Callable[..., pb.StartAttemptsRequest] = pb.StartAttemptsRequest
    async with grpc.aio.insecure_channel(node.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await WorkerServiceStub(channel).StartAttempts(build(**{**GOOD, **fields}), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(field)


async def test_a_worker_without_lease_starts_and_finishes_nothing(node: Node) -> None:
    handler, _ = await publish(node)
    message = Published(b"4096", b"", {"claim": b"1"})
    async with raw_worker(node.address, {handler: 1}) as worker:
        assert await Caller(worker).start([message]) == []
        unknown = Caller(worker)
        worker.incarnation += 1_000_000
        for call in (unknown.start([message]), unknown.finish([pb.Assignment(job_id=4096, claim=1)])):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_worker_cannot_take_the_name_of_a_lease(node: Node) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with raw_worker(node.address, {"h": 1}, name="kafka:h"):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_dispatch_is_chosen_and_shown(node: Node) -> None:
    handler = handler_name()
    async with grpc.aio.insecure_channel(node.address) as channel:
        stub = AdminServiceStub(channel)
        request = admin.SetHandlerDispatchRequest(
            handler=handler, mode=admin.DISPATCH_KAFKA, queue_timeout=Duration(seconds=30), max_unfinished=7
        )
        changed = await stub.SetHandlerDispatch(request, timeout=10)
        assert (changed.dispatch, changed.queue_timeout.seconds, changed.max_unfinished) == (
            admin.DISPATCH_KAFKA, 30, 7,
        )  # fmt: skip
        back = admin.SetHandlerDispatchRequest(handler=handler, mode=admin.DISPATCH_STREAM)
        assert (await stub.SetHandlerDispatch(back, timeout=10)).max_unfinished == 7
        [listed] = (await stub.ListHandlers(admin.ListHandlersRequest(), timeout=10)).handlers
        assert (listed.handler, listed.dispatch) == (handler, admin.DISPATCH_STREAM)


async def test_a_node_without_kafka_publishes_nothing(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path) as node, grpc.aio.insecure_channel(node.address) as channel:
        request = admin.SetHandlerDispatchRequest(handler="h", mode=admin.DISPATCH_KAFKA)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await AdminServiceStub(channel).SetHandlerDispatch(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "--kafka" in (caught.value.details() or "")
