"""`shardctl schedules`: define, look at and steer schedules."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.crontab_import import import_
from shard_manager.shardctl.job_view import job_blocks, job_json
from shard_manager.shardctl.layout import Line
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.preview import preview
from shard_manager.shardctl.schedule_define import ScheduleName, create, outcome_text, update
from shard_manager.shardctl.schedule_view import schedule_blocks, schedule_json, schedules_table
from shardwheel.v1.schedule_pb2 import Schedule
from shardwheel.v1.schedule_service_pb2 import (
    DeleteScheduleRequest,
    GetScheduleRequest,
    ListSchedulesRequest,
    PauseScheduleRequest,
    ResumeScheduleRequest,
    TriggerScheduleRequest,
)

app = group("Define, find and steer schedules.")

_PAGE = 1000

command(app, "create")(create)


@command(app, "list")
async def list_(
    cli: Cli,
    *,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Only names that start with this.")] = None,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Only schedules of this handler.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
) -> None:
    """List schedules by name."""
    request = ListSchedulesRequest(namespace=cli.settings.namespace, name_prefix=prefix or "", handler=handler or "")
    async with cli.connect() as connection:
        schedules, more = await _list(connection, request, limit)
    data: Json = {"schedules": [schedule_json(schedule) for schedule in schedules], "more": more}
    cli.output.emit(data, schedules_table(schedules))
    if more:
        cli.output.note(f"note: these are the first {limit}; --limit shows more")


async def _list(connection: Connection, request: ListSchedulesRequest, limit: int) -> tuple[list[Schedule], bool]:
    """Follows the pages until `limit` schedules are there; the second value tells whether there are more."""
    schedules: list[Schedule] = []
    while True:
        request.page_size = min(limit - len(schedules) + 1, _PAGE)
        response = await connection.call(connection.schedules.ListSchedules, request)
        schedules += response.schedules
        request.page_token = response.next_page_token
        if len(schedules) > limit or not request.page_token:
            return schedules[:limit], len(schedules) > limit


@command(app, "get")
async def get(cli: Cli, *, name: ScheduleName) -> None:
    """Show a schedule with its counters."""
    async with cli.connect() as connection:
        request = GetScheduleRequest(namespace=cli.settings.namespace, name=name)
        schedule = await connection.call(connection.schedules.GetSchedule, request)
    cli.output.emit(schedule_json(schedule), *schedule_blocks(schedule))


command(app, "update")(update)
command(app, "preview")(preview)


@command(app, "pause")
async def pause(
    cli: Cli,
    *,
    name: ScheduleName,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A note for people.")] = None,
) -> None:
    """Stop a schedule from firing until it is resumed."""
    async with cli.connect() as connection:
        request = PauseScheduleRequest(namespace=cli.settings.namespace, name=name, note=note or "")
        schedule = await connection.call(connection.schedules.PauseSchedule, request)
    cli.output.emit(schedule_json(schedule), Line(outcome_text(schedule)))


@command(app, "resume")
async def resume(cli: Cli, *, name: ScheduleName) -> None:
    """Let a paused schedule fire again; its catch-up policy decides about firings missed in between."""
    async with cli.connect() as connection:
        request = ResumeScheduleRequest(namespace=cli.settings.namespace, name=name)
        schedule = await connection.call(connection.schedules.ResumeSchedule, request)
    cli.output.emit(schedule_json(schedule), Line(outcome_text(schedule)))


@command(app, "trigger")
async def trigger(cli: Cli, *, name: ScheduleName) -> None:
    """Make a job of a schedule now, paused or not."""
    async with cli.connect() as connection:
        request = TriggerScheduleRequest(namespace=cli.settings.namespace, name=name)
        response = await connection.call(connection.schedules.TriggerSchedule, request)
    job = response.job
    cli.output.emit({"job": job_json(job)}, *job_blocks(job, datetime.now(UTC)))


command(app, "import")(import_)


@command(app, "delete")
async def delete(cli: Cli, *, name: ScheduleName) -> None:
    """Delete a schedule. Jobs it made stay."""
    async with cli.connect() as connection:
        request = DeleteScheduleRequest(namespace=cli.settings.namespace, name=name)
        await connection.call(connection.schedules.DeleteSchedule, request)
    cli.output.emit({"name": name, "deleted": True}, Line(f"schedule {name} is deleted"))
