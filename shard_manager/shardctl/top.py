"""`shardctl top`: the cluster at work, on one screen that is drawn anew every few seconds."""

import asyncio
import signal
from datetime import timedelta
from typing import Annotated, Final

import typer

from shard_manager.shardctl.call_error import CallFailedError
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.layout import Line
from shard_manager.shardctl.option_types import DURATION
from shard_manager.shardctl.output import Screen
from shard_manager.shardctl.settings import Format
from shard_manager.shardctl.top_view import Moment, blocks, to_json
from shardwheel.v1.admin_service_pb2 import (
    GetActivityRequest,
    GetStatusRequest,
    ListHandlersRequest,
    ListWorkersRequest,
)

DEFAULT_PAUSE: Final = timedelta(seconds=2)
LEAST_PAUSE: Final = timedelta(milliseconds=500)


async def top(
    cli: Cli,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show one moment and end.")] = False,
    every: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Time between two looks, at least 500ms. [default: 2s]")
    ] = None,
) -> None:
    """Watch the cluster at work: throughput, lateness, queues, nodes, workers. Ctrl-C ends it.

    Rates and lateness are those of the last minute, of all nodes and namespaces; handlers and workers are those of the
    namespace. -o json prints one document for each look, on a line of its own.
    """
    pause = DEFAULT_PAUSE if every is None else every
    if pause < LEAST_PAUSE:
        raise RefusedInputError("error: --every: has to be at least 500ms")
    async with cli.connect() as connection:
        if once:
            moment = await _look(cli, connection)
            cli.output.emit(to_json(moment), *blocks(moment, None))
        elif cli.settings.output is Format.JSON:
            await _print(cli, connection, pause)
        else:
            await _watch(cli, connection, pause)


async def _look(cli: Cli, connection: Connection) -> Moment:
    namespace, admin = cli.settings.namespace, connection.admin
    status, activity, handlers, workers = await asyncio.gather(
        connection.call(admin.GetStatus, GetStatusRequest()),
        connection.call(admin.GetActivity, GetActivityRequest()),
        connection.call(admin.ListHandlers, ListHandlersRequest(namespace=namespace)),
        connection.call(admin.ListWorkers, ListWorkersRequest(namespace=namespace)),
    )
    return Moment(
        namespace=namespace, status=status, activity=activity, handlers=handlers.handlers, workers=workers.workers
    )


async def _print(cli: Cli, connection: Connection, pause: timedelta) -> None:
    asked = _asked_to_end()
    cli.output.emit(to_json(await _look(cli, connection)))
    while not await _over(asked, pause):
        cli.output.emit(to_json(await _look(cli, connection)))


async def _watch(cli: Cli, connection: Connection, pause: timedelta) -> None:
    screen = Screen()
    moment, trouble = await _look(cli, connection), ""
    asked = _asked_to_end()
    with screen:
        while True:
            # What was seen last stays while no server answers.
            last = [Line(f"no answer, trying again: {trouble}")] if trouble else []
            screen.show(*blocks(moment, screen.height - 2 * len(last)), *last)
            if await _over(asked, pause):
                return
            try:
                moment, trouble = await _look(cli, connection), ""
            except CallFailedError as error:
                trouble = error.lines[0] if error.lines else error.code.name


def _asked_to_end() -> asyncio.Event:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked


async def _over(asked: asyncio.Event, pause: timedelta) -> bool:
    """Waits for the next look; whether the user wants to end it meanwhile."""
    try:
        async with asyncio.timeout(pause.total_seconds()):
            return await asked.wait()
    except TimeoutError:
        return False
