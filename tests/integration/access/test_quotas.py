"""Quotas on a real node, and on two that share them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from server.app import Node
from server.store import quotas as store
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.nodes import running_node, running_nodes
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, NewJob, NewSchedule, ResourceExhausted


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


async def limit(node: Node, **quotas: float) -> pb.Namespace:
    """Set quotas of the default namespace through a node."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        request = pb.UpdateNamespaceRequest(namespace="default", quotas=pb.Quotas(**quotas))  # type: ignore[arg-type]
        return await AdminServiceStub(channel).UpdateNamespace(request, timeout=10.0)


async def test_pending_jobs_end_where_the_quota_does(node: Node) -> None:
    await limit(node, pending_jobs=25)
    async with AsyncClient(node.address) as client:
        await client.submit_many([NewJob(handler="a", payload=number) for number in range(15)])
        await client.submit_many([NewJob(handler=f"b{number}", payload=number) for number in range(9)])
        await client.submit("a")
        with pytest.raises(ResourceExhausted, match="namespace 'default' may have 25 pending jobs") as refused:
            await client.submit("a")
        assert refused.value.reason == "QUOTA_EXCEEDED"
        assert refused.value.metadata["quota"] == "pending_jobs"
        assert refused.value.retry_delay is not None
        with pytest.raises(ResourceExhausted):
            await client.submit_many([NewJob(handler="a") for _ in range(2)])
        # Nothing was stored of what was refused.
        jobs = [job async for job in client.list()]
        assert len(jobs) == 25
        # Room that others make is found.
        for job in jobs[:3]:
            await client.cancel(job.id)

        async def taken() -> bool:
            try:
                await client.submit("a")
            except ResourceExhausted:
                return False
            return True

        await eventually(taken, what="room for another job")


async def test_parked_and_future_jobs_are_pending_as_well(node: Node) -> None:
    async with AsyncClient(node.address) as client:
        await client.submit_many(
            [
                NewJob(handler="a", payload=1234, concurrency_key="k", delay=3600 if number % 2 else 0)
                for number in range(10)
            ]
        )
        assert await store.count_pending(node.database, node.engine.ownership.partition_of, 1, 100) == (10, 10 * 4)
        rows = await node.database.run("UPDATE jobs SET state = 2 WHERE due_at <= now() RETURNING id")
        assert len(rows) == 5
        assert await store.count_pending(node.database, node.engine.ownership.partition_of, 1, 100) == (10, 10 * 4)
        counted, _ = await store.count_pending(node.database, node.engine.ownership.partition_of, 1, 3)
        assert 3 <= counted <= 10


async def test_bytes_of_payloads_are_counted(node: Node) -> None:
    await limit(node, pending_bytes=10_000)
    async with AsyncClient(node.address) as client:
        await client.submit("a", "x" * 6_000)
        with pytest.raises(ResourceExhausted, match="10000 bytes of pending payloads"):
            await client.submit("a", "x" * 6_000)
        await client.submit("a", "x" * 3_000)


async def test_a_node_does_not_count_for_each_submit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = 0
    count = store.count_pending

    async def counted(*arguments: object) -> tuple[int, int]:
        nonlocal counts
        counts += 1
        return await count(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("server.store.quotas.count_pending", counted)
    await limit(node, pending_jobs=1_000_000)
    async with AsyncClient(node.address) as client:
        await asyncio.gather(*(client.submit("a") for _ in range(200)))
    assert counts == 1


async def test_schedules_end_where_the_quota_does(node: Node) -> None:
    await limit(node, schedules=2)
    async with AsyncClient(node.address) as client:
        first = NewSchedule(name="one", handler="a", every=3600)
        await client.create_schedule(first)
        await client.ensure_schedules([first, NewSchedule(name="two", handler="a", every=3600)])
        with pytest.raises(ResourceExhausted, match="may have 2 schedules"):
            await client.create_schedule(NewSchedule(name="three", handler="a", every=3600))
        with pytest.raises(ResourceExhausted):
            await client.ensure_schedules([NewSchedule(name=name, handler="a", every=60) for name in ("one", "three")])
        # What is there may be said again, and changed.
        await client.create_schedule(first)
        await client.ensure_schedules([NewSchedule(name="one", handler="a", every=60)])


async def test_details_say_which_quota(node: Node) -> None:
    await limit(node, submit_rate=0.01)
    async with AsyncClient(node.address) as client:
        await client.submit("a")
        with pytest.raises(ResourceExhausted) as refused:
            await client.submit("a")
    cause = refused.value.__cause__
    assert isinstance(cause, grpc.aio.AioRpcError)
    status = rpc_status.from_call(cause)  # type: ignore[arg-type]
    assert status is not None
    failure = error_details_pb2.QuotaFailure()
    assert any(detail.Unpack(failure) for detail in status.details)
    assert failure.violations[0].subject == "namespace:default"
    assert refused.value.retry_delay is not None
    assert 1 < refused.value.retry_delay.total_seconds() <= 100


async def test_a_quota_is_lifted_by_zero_and_others_stay(node: Node) -> None:
    await limit(node, submit_rate=0.01, pending_jobs=10)
    changed = await limit(node, submit_rate=0)
    assert [one.name for one, _ in changed.quotas.ListFields()] == ["pending_jobs"]
    async with AsyncClient(node.address) as client:
        for _ in range(3):
            await client.submit("a")


async def test_two_nodes_share_a_rate(database: str, tmp_path: Path) -> None:
    """What one does not use, the other may; and a change through one reaches the other."""
    async with running_nodes(database, tmp_path, 2) as nodes:
        await limit(nodes[0], submit_rate=40.0)
        second = nodes[1].catalog
        await eventually(lambda: _rate(nodes[1]) == 40.0, what="the quota on the other node")
        namespace = await second.namespace("default")
        for node in nodes:
            await node.quotas.admit_jobs(namespace, 1, 0)
        # The first one alone: all of it, once the second has fallen silent.
        state = nodes[0].quotas._states[namespace.namespace_id]
        assert state.bucket is not None
        await eventually(lambda: _part(nodes[0]) > 35.0, what="the whole rate for the only one that submits")
        for _ in range(2):
            nodes[1].quotas._states[namespace.namespace_id].told -= 1000
            await nodes[1].quotas.exchange()
            await nodes[0].quotas.exchange()
        assert _part(nodes[0]) == 20.0


def _rate(node: Node) -> float | None:
    known = node.catalog._namespaces.get("default")
    return None if known is None else known.quotas.submit_rate


def _part(node: Node) -> float:
    [state] = node.quotas._states.values()
    assert state.bucket is not None
    return state.bucket._rate
