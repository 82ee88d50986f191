"""ScheduleService served on a real socket, with what tests look at around it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from server.api.doorkeeper import Doorkeeper
from server.api.interceptor import RequestGuard
from server.api.schedule_service import ScheduleNudges, ScheduleService
from server.api.validation import Limits
from server.domain.due import DueJob
from server.store.catalog import Catalog
from shardwheel.v1.job_pb2 import JobSpec
from shardwheel.v1.schedule_pb2 import CronTiming, ScheduleSpec
from shardwheel.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from shardwheel.v1.schedule_service_pb2_grpc import add_ScheduleServiceServicer_to_server as add_service
from tests.support.access import open_gate
from tests.support.schedules import PARTITION_OF, Bench, open_bench


@dataclass(kw_only=True)
class Api:
    """A stub of the service, and what the service told the engine."""

    bench: Bench
    catalog: Catalog
    stub: ScheduleServiceStub
    changed: list[tuple[int, datetime | None]] = field(default_factory=list)
    jobs_added: list[DueJob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of a call: its code, the reason, and the refused fields."""

    code: grpc.StatusCode
    reason: str
    fields: dict[str, str]
    message: str
    metadata: dict[str, str]


@asynccontextmanager
async def open_api(dsn: str, *, limits: Limits | None = None) -> AsyncIterator[Api]:
    """Serve ScheduleService on a loopback port for one test."""
    async with open_bench(dsn) as bench:
        catalog = Catalog(bench.database)
        server = grpc.aio.server(interceptors=[RequestGuard(Doorkeeper(open_gate()))])
        port = server.add_insecure_port("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            api = Api(bench=bench, catalog=catalog, stub=ScheduleServiceStub(channel))
            service = ScheduleService(
                database=bench.database,
                catalog=catalog,
                ids=bench.ids,
                partition_of=PARTITION_OF,
                nudges=ScheduleNudges(
                    changed=lambda shard, at: api.changed.append((shard, at)), jobs_added=api.jobs_added.extend
                ),
                now=lambda: datetime.now(UTC),
                limits=limits,
            )
            add_service(service, server)
            await server.start()
            try:
                yield api
            finally:
                await server.stop(0)


def cron_spec(
    expression: str = "0 * * * *", zone: str = "", *, handler: str = "h", payload: bytes = b"{}"
) -> ScheduleSpec:
    """Return a definition by cron expression."""
    return ScheduleSpec(
        cron=CronTiming(expression=expression, time_zone=zone), job=JobSpec(handler=handler, payload=payload)
    )


def interval_spec(seconds: float, *, handler: str = "h") -> ScheduleSpec:
    """Return a definition by interval."""
    spec = ScheduleSpec(job=JobSpec(handler=handler))
    spec.interval.every.FromMilliseconds(round(seconds * 1000))
    return spec


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Return what the error of a call says, from its details."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
        detail.Unpack(bad_request)
    return Refusal(
        code=error.code(),
        reason=info.reason,
        fields={violation.field: violation.description for violation in bad_request.field_violations},
        message=error.details() or "",
        metadata=dict(info.metadata),
    )
