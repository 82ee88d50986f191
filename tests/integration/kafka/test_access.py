"""Published jobs on a node that asks for tokens."""

import asyncio

import grpc
import pytest

from server.app import Node
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.access import bearer, granted
from tests.support.kafka import GROUP_SETTINGS, KafkaBroker, publish
from tests.support.nodes import finished, history, submit
from worker_sdk import Context, Worker


async def test_a_worker_starts_and_finishes_with_its_token_and_nobody_else_for_it(
    node: Node, broker: KafkaBroker, database: str
) -> None:
    crew = await granted(database, "default:work", holder="crew")
    thief = await granted(database, "default:work", holder="thief")
    foreign = await granted(database, "elsewhere:work", holder="foreign")
    await node.access.keyring.refresh()
    handler, _ = await publish(node)
    worker = Worker(node.address, name="w", token=crew, watchdog=0, kafka=broker.address, kafka_config=GROUP_SETTINGS)

    @worker.handler(handler)
    async def work(payload: bytes, ctx: Context) -> int:
        return ctx.claim

    await asyncio.to_thread(worker.start)
    try:
        [job_id] = await submit(node, handler)
        await finished(node, [job_id], timeout=30)
        [(incarnation,)] = await node.database.fetch("SELECT incarnation FROM workers WHERE name = 'w'")
        attempt = pb.AttemptRef(job_id=job_id, claim=1)
        start = pb.StartAttemptsRequest(
            worker="w", incarnation=incarnation, attempts=[pb.AttemptToStart(attempt=attempt)]
        )
        finish = pb.FinishAttemptsRequest(
            worker="w", incarnation=incarnation, results=[pb.Result(attempt=attempt, completed=pb.Completed())]
        )
        refusals = {
            thief: grpc.StatusCode.FAILED_PRECONDITION,
            foreign: grpc.StatusCode.PERMISSION_DENIED,
        }
        async with grpc.aio.insecure_channel(node.address) as channel:
            stub = WorkerServiceStub(channel)
            for token, code in refusals.items():
                for call in (
                    stub.StartAttempts(start, metadata=bearer(token), timeout=10),
                    stub.FinishAttempts(finish, metadata=bearer(token), timeout=10),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is code
    finally:
        await asyncio.to_thread(worker.stop, 0.0)
    assert [(one.state, one.result) for one in await history(node, job_id)] == [(3, b"1")]
