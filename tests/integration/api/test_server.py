"""The server around the services: health, reflection, limits, errors that nobody foresaw."""

import asyncio
import logging
from typing import TypeAlias

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from server.api.server import ApiServer
from server.domain.errors import InvalidInput
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import JobSpec
from tests.integration.api.node import ApiNode, refused
from tests.support.access import open_gate

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(channel: grpc.aio.Channel, service: str = "") -> int:
    """Ask grpc.health.v1 as a load balancer does."""
    call: Call = channel.unary_unary("/grpc.health.v1.Health/Check")
    data = await call(health_pb2.HealthCheckRequest(service=service).SerializeToString())
    return int(health_pb2.HealthCheckResponse.FromString(data).status)


async def test_health_follows_the_node(node: ApiNode) -> None:
    async def statuses() -> set[int]:
        names = ("", "shardwheel.v1.JobService", "shardwheel.v1.AdminService")
        return {await health_of(node.channel, name) for name in names}

    assert await statuses() == {SERVING}
    await node.server.set_serving(False)
    assert await statuses() == {NOT_SERVING}


async def test_a_server_does_not_serve_before_it_is_told_to() -> None:
    server = ApiServer([], gate=open_gate())
    port = server.bind("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await health_of(channel) == NOT_SERVING
    await server.stop(0)


async def test_a_port_that_is_taken_is_named(node: ApiNode) -> None:
    server = ApiServer([], gate=open_gate())
    with pytest.raises(InvalidInput, match="choose another port"):
        server.bind(node.address)
    await server.stop(0)


async def test_reflection_lists_the_services(node: ApiNode) -> None:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = node.channel.stream_stream(method)
    data = await anext(aiter(stream(iter([request.SerializeToString()]))))
    answer = reflection_pb2.ServerReflectionResponse.FromString(data)
    names = {service.name for service in answer.list_services_response.service}
    assert {"shardwheel.v1.JobService", "shardwheel.v1.AdminService", "grpc.health.v1.Health"} <= names


async def test_an_error_that_nobody_foresaw_gets_an_incident_and_one_line_in_the_log(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("the secret inside")

    monkeypatch.setattr(node.job_service._reader, "view", broken)
    with caplog.at_level(logging.ERROR, logger="server"):
        async with refused(grpc.StatusCode.INTERNAL) as refusals:
            await node.jobs.GetJob(pb.GetJobRequest(id=5))
    assert refusals[0].reason == "INTERNAL"
    assert "secret" not in refusals[0].message
    [record] = caplog.records
    assert record.__dict__["incident"] == refusals[0].metadata["incident"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_calls_are_observed(node: ApiNode) -> None:
    await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h")))
    async with refused(grpc.StatusCode.NOT_FOUND):
        await node.jobs.GetJob(pb.GetJobRequest(id=4096))
    await node.jobs.BulkSubmitJobs(iter([pb.BulkSubmitJobsRequest(jobs=[JobSpec(handler="h")])]))
    assert [(method.rpartition("/")[2], code) for method, code, _ in node.calls] == [
        ("SubmitJob", "OK"),
        ("GetJob", "NOT_FOUND"),
        ("BulkSubmitJobs", "OK"),
    ]
    assert all(seconds > 0 for _, _, seconds in node.calls)


async def test_a_call_under_way_is_told_that_the_node_stops(node: ApiNode) -> None:
    job = await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="never", payload=b"")))
    call = node.jobs.WaitJob(pb.WaitJobRequest(id=job.job.id), timeout=30)
    await asyncio.sleep(0.2)
    assert not call.done()
    await node.server.stop(0.1)
    async with refused(grpc.StatusCode.UNAVAILABLE) as refusals:
        await call
    assert refusals[0].reason == "NODE_STOPPING"


async def test_metadata_is_limited(node: ApiNode) -> None:
    request = pb.GetJobRequest(id=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.jobs.GetJob(request, metadata=(("x-large", "x" * 60_000),))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
