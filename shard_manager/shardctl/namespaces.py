"""`shardctl namespaces`: create and list namespaces."""

from datetime import timedelta
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.job_view import instant_text, retry_text, timeouts_text
from shard_manager.shardctl.layout import Column, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.option_types import COUNT, DURATION
from shardwheel.v1.admin_service_pb2 import CreateNamespaceRequest, ListNamespacesRequest

app = group("Create and list namespaces.")


@command(app, "create")
async def create(
    cli: Cli,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help='Lower-case letters, digits and "-".')],
    max_attempts: Annotated[int | None, typer.Option(**COUNT, help="Default tries of its jobs.")] = None,
    attempt_timeout: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Default limit of each attempt of its jobs.")
    ] = None,
) -> None:
    """Create a namespace. Creating it again with the same defaults changes nothing."""
    request = CreateNamespaceRequest(namespace=name)
    if max_attempts is not None:
        request.retry.max_attempts = max_attempts
    if attempt_timeout is not None:
        request.timeouts.attempt_timeout.FromTimedelta(attempt_timeout)
    async with cli.connect() as connection:
        namespace = await connection.call(connection.admin.CreateNamespace, request)
    cli.output.emit(message_to_json(namespace), Line(f"namespace {namespace.namespace} exists"))


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
    )
    rows = [
        (
            namespace.namespace,
            instant_text(namespace, "created_at"),
            retry_text(namespace.retry) or "-",
            timeouts_text(namespace.timeouts) or "-",
        )
        for namespace in response.namespaces
    ]
    data = {"namespaces": [message_to_json(namespace) for namespace in response.namespaces]}
    cli.output.emit(data, Table(columns, rows, empty="no namespaces"))
