"""Calls of AdminService, and what an answer says."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import grpc.aio

from shardwheel.v1.admin_service_pb2 import GetStatusRequest, GetStatusResponse
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.waiting import eventually


@asynccontextmanager
async def admin_at(address: str) -> AsyncIterator[AdminServiceStub]:
    """The AdminService of the node at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield AdminServiceStub(channel)


def counts(status: GetStatusResponse) -> dict[str, int]:
    """Shards per node as the fences have it."""
    return {node.node: node.shard_count for node in status.nodes}


async def settled(
    admin: AdminServiceStub, *, at_least: int = 0, without: Collection[str] = (), timeout_s: float = 60.0
) -> GetStatusResponse:
    """Wait until every shard is served by its planned owner, under plan `at_least` or later, and none by `without`."""
    status = GetStatusResponse()

    async def reached() -> bool:
        nonlocal status
        status = await admin.GetStatus(GetStatusRequest(), timeout=30)
        return (
            status.plan_version >= at_least
            and {shard.state for shard in status.shards} == {"serving"}
            and not {shard.owner for shard in status.shards}.intersection(without)
        )

    await eventually(reached, timeout_s=timeout_s, what="every shard being served by its planned owner")
    return status
