"""`shardctl handlers`: look at handlers, stop and resume the hand-out of their jobs, choose how they are handed out."""

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.layout import Column, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.option_types import COUNT, DURATION
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.admin_service_pb2 import (
    DISPATCH_KAFKA,
    DISPATCH_STREAM,
    Handler,
    ListHandlersRequest,
    PauseHandlerRequest,
    ResumeHandlerRequest,
    SetHandlerDispatchRequest,
)

app = group("Look at handlers, pause and resume them, choose how their jobs are handed out.")

HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="Name of the handler.", show_default=False)]

# The server stops counting due jobs there.
_MOST_DUE = 10_000


@command(app, "list")
async def list_(cli: Cli) -> None:
    """List the handlers with their workers and the jobs that wait for them."""
    async with cli.connect() as connection:
        request = ListHandlersRequest(namespace=cli.settings.namespace)
        response = await connection.call(connection.admin.ListHandlers, request)
    data = {"handlers": [message_to_json(handler) for handler in response.handlers]}
    cli.output.emit(data, handlers_table(response.handlers))


def handlers_table(handlers: Iterable[Handler]) -> Table:
    """One line per handler: its workers, and what waits for them."""
    columns = (
        Column("HANDLER", minimum=16),
        Column("STATE", state=True),
        Column("WORKERS", right=True),
        Column("SLOTS", right=True),
        Column("RUNNING", right=True),
        Column("DUE", right=True),
        Column("OLDEST", right=True),
        Column("DISPATCH"),
    )
    return Table(columns, [_row(each) for each in handlers], empty="no handlers")


def _row(handler: Handler) -> tuple[str, ...]:
    return (
        handler.handler,
        "paused" if handler.paused else "active",
        str(handler.worker_count),
        str(handler.slot_count),
        str(handler.running_count),
        f"{_MOST_DUE}+" if handler.due_count >= _MOST_DUE else str(handler.due_count),
        format_duration(handler.oldest_due.ToTimedelta()) if handler.HasField("oldest_due") else "-",
        _dispatch(handler),
    )


def _dispatch(handler: Handler) -> str:
    """Say how its jobs are handed out; with Kafka, how many wait in the topic, and for how long."""
    if handler.dispatch != DISPATCH_KAFKA:
        return "stream"
    if not handler.published_count:
        return "kafka"
    return f"kafka ({handler.published_count}, {format_duration(handler.oldest_published.ToTimedelta())})"


@command(app, "pause")
async def pause(
    cli: Cli,
    *,
    handler: HandlerName,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A note for people.")] = None,
) -> None:
    """Stop the hand-out of a handler's jobs. Running ones go on."""
    async with cli.connect() as connection:
        request = PauseHandlerRequest(namespace=cli.settings.namespace, handler=handler, note=note or "")
        paused = await connection.call(connection.admin.PauseHandler, request)
    running = f"; still running: {counted(paused.running_count, 'job')}" if paused.running_count else ""
    cli.output.emit(message_to_json(paused), Line(f"handler {paused.handler} is paused{running}"))


class Mode(StrEnum):
    """Ways in which jobs reach their workers."""

    STREAM = "stream"
    KAFKA = "kafka"


_MODES = {Mode.STREAM: DISPATCH_STREAM, Mode.KAFKA: DISPATCH_KAFKA}


@command(app, "dispatch")
async def dispatch(
    cli: Cli,
    *,
    handler: HandlerName,
    mode: Annotated[Mode, typer.Argument(metavar="stream|kafka", help="How its jobs are handed out.")],
    queue_timeout: Annotated[
        timedelta | None,
        typer.Option(help="Published jobs that no consumer starts in this time are published again; at first 5m.",
                     **DURATION),
    ] = None,
    max_unfinished: Annotated[
        int | None,
        typer.Option(help="So many jobs may be published and not finished; at first 10000.", **COUNT),
    ] = None,
) -> None:  # fmt: skip
    """Hand a handler's jobs out over the workers' sessions, or through its Kafka topic."""
    request = SetHandlerDispatchRequest(
        namespace=cli.settings.namespace, handler=handler, mode=_MODES[mode], max_unfinished=max_unfinished or 0
    )
    if queue_timeout is not None:
        request.queue_timeout.FromTimedelta(queue_timeout)
    async with cli.connect() as connection:
        changed = await connection.call(connection.admin.SetHandlerDispatch, request)
    cli.output.emit(message_to_json(changed), Line(_dispatch_line(changed)))


def _dispatch_line(handler: Handler) -> str:
    if handler.dispatch != DISPATCH_KAFKA:
        return f"jobs of {handler.handler} are handed out over the workers' sessions"
    again = format_duration(handler.queue_timeout.ToTimedelta())
    return (
        f"jobs of {handler.handler} are published to topic shardwheel.{handler.namespace}.{handler.handler}, "
        f"at most {handler.max_unfinished} unfinished ones; again after {again}"
    )


@command(app, "resume")
async def resume(cli: Cli, *, handler: HandlerName) -> None:
    """Hand out a paused handler's jobs again."""
    async with cli.connect() as connection:
        request = ResumeHandlerRequest(namespace=cli.settings.namespace, handler=handler)
        resumed = await connection.call(connection.admin.ResumeHandler, request)
    cli.output.emit(message_to_json(resumed), Line(f"handler {resumed.handler} is active"))
