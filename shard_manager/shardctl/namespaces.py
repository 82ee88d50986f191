"""`shardctl namespaces`: create, list and limit namespaces."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.job_view import instant_text, retry_text, timeouts_text
from shard_manager.shardctl.layout import Column, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.option_types import COUNT, DURATION, LIMIT
from shardwheel.v1.admin_service_pb2 import (
    CreateNamespaceRequest,
    ListNamespacesRequest,
    Quotas,
    UpdateNamespaceRequest,
)

app = group("Create, list and limit namespaces.")

_NO_LIMIT = "0 is no limit."


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """How much a namespace may have."""

    pending_jobs: Annotated[int | None, typer.Option(**LIMIT, help=f"Jobs that may wait at a time. {_NO_LIMIT}")] = None
    pending_bytes: Annotated[int | None, typer.Option(**LIMIT, help=f"Bytes of their payloads in all. {_NO_LIMIT}")] = (
        None
    )
    submit_rate: Annotated[
        float | None, typer.Option(metavar="N", min=0, help=f"Jobs submitted per second. {_NO_LIMIT}")
    ] = None
    schedules: Annotated[int | None, typer.Option(**LIMIT, help=f"Schedules. {_NO_LIMIT}")] = None

    def message(self) -> Quotas:
        """The quotas that were given."""
        return Quotas(
            pending_jobs=self.pending_jobs,
            pending_bytes=self.pending_bytes,
            submit_rate=self.submit_rate,
            schedules=self.schedules,
        )


@command(app, "create")
async def create(
    cli: Cli,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help='Lower-case letters, digits and "-".')],
    max_attempts: Annotated[int | None, typer.Option(**COUNT, help="Default tries of its jobs.")] = None,
    attempt_timeout: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Default limit of each attempt of its jobs.")
    ] = None,
    quotas: QuotaOptions,
) -> None:
    """Create a namespace. Creating it again with the same defaults changes nothing."""
    request = CreateNamespaceRequest(namespace=name, quotas=quotas.message())
    if max_attempts is not None:
        request.retry.max_attempts = max_attempts
    if attempt_timeout is not None:
        request.timeouts.attempt_timeout.FromTimedelta(attempt_timeout)
    async with cli.connect() as connection:
        namespace = await connection.call(connection.admin.CreateNamespace, request)
    cli.output.emit(message_to_json(namespace), Line(f"namespace {namespace.namespace} exists"))


@command(app, "update")
async def update(
    cli: Cli,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a namespace that exists.")],
    quotas: QuotaOptions,
) -> None:
    """Change quotas of a namespace; those that are not given stay as they are."""
    request = UpdateNamespaceRequest(namespace=name, quotas=quotas.message())
    async with cli.connect() as connection:
        namespace = await connection.call(connection.admin.UpdateNamespace, request)
    cli.output.emit(
        message_to_json(namespace),
        Line(f"namespace {namespace.namespace}: {_quotas_text(namespace.quotas) or 'no quotas'}"),
    )


@command(app, "list")
async def list_(cli: Cli) -> None:
    """List the namespaces with the defaults of their jobs."""
    async with cli.connect() as connection:
        response = await connection.call(connection.admin.ListNamespaces, ListNamespacesRequest())
    columns = (
        Column("NAMESPACE", minimum=12),
        Column("CREATED"),
        Column("RETRY", minimum=10),
        Column("TIMEOUTS", minimum=10),
        Column("QUOTAS", minimum=10),
    )
    rows = [
        (
            namespace.namespace,
            instant_text(namespace, "created_at"),
            retry_text(namespace.retry) or "-",
            timeouts_text(namespace.timeouts) or "-",
            _quotas_text(namespace.quotas) or "-",
        )
        for namespace in response.namespaces
    ]
    data = {"namespaces": [message_to_json(namespace) for namespace in response.namespaces]}
    cli.output.emit(data, Table(columns, rows, empty="no namespaces"))


def _quotas_text(quotas: Quotas) -> str:
    texts = [f"{descriptor.name.replace('_', '-')}={value:.15g}" for descriptor, value in quotas.ListFields()]
    return " ".join(texts)
