"""The database away: UNAVAILABLE with advice, and recovery without a restart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import grpc
import pytest

from server.embedded import StopMode
from server.store.migrate import migrate
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import JobSpec
from tests.integration.api.node import ApiNode, refused
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

SUBMIT = pb.SubmitJobRequest(job=JobSpec(handler="h", dedupe_key="k"))


@pytest.fixture
async def own_postgres() -> AsyncIterator[PostgresServer]:
    """A server that this test alone stops and starts."""
    server = PostgresServer()
    await asyncio.to_thread(server.start)
    yield server
    await asyncio.to_thread(server.close)


async def test_calls_say_that_the_database_is_away_and_work_again_after(own_postgres: PostgresServer) -> None:
    dsn = own_postgres.dsn(own_postgres.create_database())
    await migrate(dsn)
    async with ApiNode(dsn) as node:
        job = (await node.jobs.SubmitJob(SUBMIT)).job
        waiting = asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id), timeout=60))
        await eventually(lambda: node.engine.waiters, what="the waiter")
        await asyncio.to_thread(own_postgres.stop, StopMode.IMMEDIATE)

        calls: list[Awaitable[object]] = [
            node.jobs.SubmitJob(SUBMIT, timeout=20),
            node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h")), timeout=20),
            node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=[JobSpec(handler="h")]), timeout=20),
            node.jobs.GetJob(pb.GetJobRequest(id=job.id), timeout=20),
            node.jobs.ListJobs(pb.ListJobsRequest(), timeout=20),
            node.jobs.CancelJob(pb.CancelJobRequest(id=job.id), timeout=20),
            node.admin.GetStatus(admin_pb.GetStatusRequest(), timeout=20),
        ]

        async def fails(call: Awaitable[object]) -> None:
            async with refused(grpc.StatusCode.UNAVAILABLE) as refusals:
                await call
            assert refusals[0].reason in {"DATABASE_UNAVAILABLE", "OUTCOME_UNKNOWN"}
            assert refusals[0].domain == "shardwheel"
            assert refusals[0].retry_after_s == 1.0

        async def says_what_it_cannot_look_at() -> None:
            diagnosis = await node.admin.Diagnose(admin_pb.DiagnoseRequest(), timeout=30)
            assert all(check.trouble for check in diagnosis.checks)

        await asyncio.gather(says_what_it_cannot_look_at(), *(fails(call) for call in calls))
        # What is wrong by itself is still said, with no database at all.
        async with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec()))

        await asyncio.to_thread(own_postgres.start)

        async def works() -> bool:
            try:
                answer = await node.jobs.SubmitJob(SUBMIT)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return bool(answer.job.id == job.id and not answer.created)

        await eventually(works, timeout_s=30, what="a submit after the outage")
        await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id))
        # The wait went through it all.
        assert (await waiting).done
