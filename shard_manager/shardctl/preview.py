"""`shardctl schedules preview`: coming firings, of an expression or of a stored schedule."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from server.domain.errors import InvalidInput
from server.domain.schedule import CronSpec, IntervalSpec, OnceSpec, ScheduleTiming
from server.domain.schedule_times import next_nominal
from server.domain.zones import load_zone
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.layout import Block, Column, Line, Table
from shard_manager.shardctl.option_types import INSTANT
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.text import printable
from shard_manager.shardctl.times import format_duration, format_instant, format_second
from shard_manager.shardctl.timing_options import TimingOptions
from shardwheel.v1.schedule_service_pb2 import GetScheduleRequest, PreviewScheduleRequest


async def preview(
    cli: Cli,
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A stored schedule; with --cron, the name that H is hashed from.", show_default=False
        ),
    ] = None,
    after: Annotated[
        datetime | None, typer.Option(**INSTANT, help="Firings strictly after this. [default: now]")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 5,
    timing: TimingOptions,
) -> None:
    """Show coming firings. Needs no server if the timing is given by options; a NAME alone asks the server."""
    start = after or datetime.now(UTC).replace(microsecond=0)
    if timing.kind is None and name is not None:
        await _preview_stored(cli, name, start, count)
        return
    try:
        parsed = timing.timing(start, name or "")
        firings = coming_firings(parsed, start, count)
    except InvalidInput as error:
        raise RefusedInputError(f"error: {printable(str(error))}") from None
    zone, description, notes = _explain(parsed)
    _emit(cli, firings, description, notes, zone)


def coming_firings(timing: ScheduleTiming, after: datetime, count: int) -> list[datetime]:
    """Up to `count` nominal times strictly after `after`; fewer if the schedule ends before."""
    firings: list[datetime] = []
    found = next_nominal(timing, after)
    while found is not None and len(firings) < count:
        firings.append(found)
        found = next_nominal(timing, found)
    return firings


async def _preview_stored(cli: Cli, name: str, after: datetime, count: int) -> None:
    async with cli.connect() as connection:
        get = GetScheduleRequest(namespace=cli.settings.namespace, name=name)
        schedule = await connection.call(connection.schedules.GetSchedule, get)
        request = PreviewScheduleRequest(spec=schedule.spec, count=count)
        request.after.FromDatetime(after)
        response = await connection.call(connection.schedules.PreviewSchedule, request)
    firings = [firing.ToDatetime(tzinfo=UTC) for firing in response.firings]
    notes = [*response.notes, *(["it is paused: no job is made until it is resumed"] if schedule.paused else [])]
    zone = load_zone(schedule.spec.cron.time_zone) if schedule.spec.cron.time_zone else None
    _emit(cli, firings, response.description, notes, zone)


def _explain(timing: ScheduleTiming) -> tuple[ZoneInfo | None, str, list[str]]:
    """Zone, words and notes of a timing."""
    match timing.spec:
        case CronSpec() as cron:
            words = f"{cron.expression.description} ({cron.time_zone})"
            return load_zone(cron.time_zone), words, list(cron.expression.notes)
        case IntervalSpec() as interval:
            return None, f"Every {format_duration(interval.every)} from {format_second(interval.anchor)}", []
        case OnceSpec() as once:
            return None, f"Once, at {format_instant(once.at)}", []


def _emit(cli: Cli, firings: list[datetime], description: str, notes: list[str], zone: ZoneInfo | None) -> None:
    data: dict[str, Json] = {"firings": [format_instant(firing) for firing in firings]}
    if notes:
        data["notes"] = notes
    cli.output.emit(data, *_blocks(firings, description, notes, zone))


def _blocks(firings: list[datetime], description: str, notes: list[str], zone: ZoneInfo | None) -> Iterator[Block]:
    head = [description, *(f"Note: {note}" for note in notes)]
    yield Line("\n".join(line for line in head if line))
    local = zone is not None and zone.key != "UTC"
    columns = (Column("FIRING"), *([Column(f"IN {zone.key}", minimum=25)] if zone is not None and local else []))
    rows = [
        (format_instant(firing), *([firing.astimezone(zone).isoformat(" ")] if local else [])) for firing in firings
    ]
    yield Table(columns, rows, empty="no firing comes")
