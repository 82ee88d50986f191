"""`shardctl schedules create` and `update`."""

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.job_options import JobOptions, PayloadArgument
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Line
from shard_manager.shardctl.schedule_options import PolicyOptions
from shard_manager.shardctl.schedule_view import schedule_json, timing_text
from shard_manager.shardctl.timing_options import TimingOptions
from shardwheel.v1.job_pb2 import JobSpec
from shardwheel.v1.schedule_pb2 import Schedule, ScheduleSpec
from shardwheel.v1.schedule_service_pb2 import CreateScheduleRequest, GetScheduleRequest, UpdateScheduleRequest

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.", show_default=False)]


async def create(
    cli: Cli,
    *,
    name: ScheduleName,
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="Name of the worker code, for example report.build.")
    ],
    payload: PayloadArgument = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    timing: TimingOptions,
    policy: PolicyOptions,
    job: JobOptions,
) -> None:
    """Create a schedule. Creating it again with the same definition changes nothing."""
    timing.require_kind()
    spec = ScheduleSpec()
    spec.job.handler = handler
    timing.apply(spec)
    policy.apply(spec)
    job.apply(spec.job)
    if (given := job.read_payload(payload)) is not None:
        spec.job.payload, spec.job.content_type = given.data, given.content_type
    async with cli.connect() as connection:
        request = CreateScheduleRequest(namespace=cli.settings.namespace, name=name, spec=spec, paused=paused)
        schedule = await connection.call(connection.schedules.CreateSchedule, request)
    cli.output.emit(schedule_json(schedule), Line(outcome_text(schedule)))


async def update(
    cli: Cli,
    *,
    name: ScheduleName,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Another handler.")] = None,
    payload: Annotated[str | None, typer.Option(metavar="TEXT", help="Another payload; - reads it from stdin.")] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Empty a field, for example end_at or job.labels. May be repeated."),
    ] = None,
    timing: TimingOptions,
    policy: PolicyOptions,
    job: JobOptions,
) -> None:
    """Change what is given and leave the rest; --label replaces all labels. An unchanged timing keeps its next firing.

    The change is refused if someone else changes the schedule at the same time.
    """
    async with cli.connect() as connection:
        get = GetScheduleRequest(namespace=cli.settings.namespace, name=name)
        current = await connection.call(connection.schedules.GetSchedule, get)
        spec = current.spec
        paths = timing.apply(spec) + policy.apply(spec)
        paths += [f"job.{path}" for path in _apply_job(spec.job, handler, payload, job)]
        for path in clear or ():
            _clear(spec, path)
            paths.append(path)
        if not paths:
            raise RefusedInputError("error: update: give at least one option that says what to change")
        request = UpdateScheduleRequest(
            namespace=cli.settings.namespace,
            name=name,
            spec=spec,
            update_mask=FieldMask(paths=sorted(set(paths))),
            etag=current.etag,
        )
        schedule = await connection.call(connection.schedules.UpdateSchedule, request)
    cli.output.emit(schedule_json(schedule), Line(outcome_text(schedule)))


def _apply_job(spec: JobSpec, handler: str | None, payload: str | None, options: JobOptions) -> list[str]:
    paths = options.apply(spec)
    if handler is not None:
        spec.handler = handler
        paths.append("handler")
    if (given := options.read_payload(payload)) is not None:
        spec.payload, spec.content_type = given.data, given.content_type
        paths += ["payload", "content_type"]
    return paths


def _clear(spec: ScheduleSpec, path: str) -> None:
    """Empties the field that a path such as "job.labels" names. Raises RefusedInputError if there is none."""
    *parents, last = path.split(".")
    message: Message = spec
    for parent in parents:
        inner = getattr(message, parent, None)
        if not isinstance(inner, Message):
            raise _no_field(path)
        message = inner
    if last not in message.DESCRIPTOR.fields_by_name:
        raise _no_field(path)
    message.ClearField(last)


def _no_field(path: str) -> RefusedInputError:
    return RefusedInputError(f"error: --clear: {path!r} is no field of a schedule; one would be end_at or job.labels")


def outcome_text(schedule: Schedule) -> str:
    """One line about what has become of a schedule."""
    next_firing = instant_text(schedule, "next_fire_at")
    fires = f"fires next at {next_firing}" if next_firing else "never fires again"
    return f"schedule {schedule.name} ({timing_text(schedule.spec)}) {'is paused' if schedule.paused else fires}"
