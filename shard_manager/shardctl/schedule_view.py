"""Schedules as people and programs see them."""

from collections.abc import Iterable, Iterator
from datetime import UTC

from shard_manager.shardctl.job_view import data_text, instant_text, retry_text, state_name, timeouts_text
from shard_manager.shardctl.layout import Block, Column, Details, Line, Table
from shard_manager.shardctl.message_json import enum_name, message_to_json
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.times import format_duration, format_second
from shardwheel.v1.schedule_pb2 import CatchUpPolicy, CronTiming, OverlapPolicy, Schedule, ScheduleSpec


def schedule_json(schedule: Schedule) -> dict[str, Json]:
    """The whole schedule."""
    return message_to_json(schedule)


def timing_text(spec: ScheduleSpec) -> str:
    """When it fires, in a few words: "30 2 * * * Europe/Paris", "every 5m", "once at 2026-11-01T05:30:00Z"."""
    match spec.WhichOneof("timing"):
        case "cron":
            return f"{spec.cron.expression} {spec.cron.time_zone or 'UTC'}"
        case "interval":
            return f"every {format_duration(spec.interval.every.ToTimedelta())}"
        case "once_at":
            return f"once at {format_second(spec.once_at.ToDatetime(tzinfo=UTC))}"
        case _:
            return ""


def schedules_table(schedules: Iterable[Schedule]) -> Table:
    """One line per schedule."""
    columns = (
        Column("NAME", minimum=16, keep_end=True),
        Column("TIMING", minimum=12),
        Column("NEXT"),
        Column("STATE", state=True),
        Column("LAST", state=True),
    )
    rows = [
        (
            schedule.name,
            timing_text(schedule.spec),
            instant_text(schedule, "next_fire_at") or "-",
            _state(schedule),
            state_name(schedule.last_outcome) or "-",
        )
        for schedule in schedules
    ]
    return Table(columns, rows, empty="no schedules")


def schedule_blocks(schedule: Schedule) -> Iterator[Block]:
    """Everything about a schedule."""
    yield Details(_pairs(schedule))
    job = schedule.spec.job
    if job.payload:
        kind = f" ({job.content_type})" if job.content_type else ""
        yield Line(f"Payload{kind}:\n{data_text(job.payload)}")


def _pairs(schedule: Schedule) -> list[tuple[str, str]]:
    spec, job = schedule.spec, schedule.spec.job
    key = f"{job.concurrency_key} (at most {job.concurrency_limit or 1})" if job.concurrency_key else ""
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(schedule.skipped_counts.items()) if count)
    return [
        ("name", schedule.name),
        ("id", str(schedule.id)),
        ("namespace", schedule.namespace),
        ("state", _state(schedule)),
        ("note", schedule.pause_note),
        ("timing", timing_text(spec)),
        ("in words", schedule.description),
        ("clock changes", _clock_text(spec)),
        ("next", instant_text(schedule, "next_fire_at") or "never"),
        ("starts", instant_text(spec, "start_at")),
        ("ends", instant_text(spec, "end_at")),
        ("jitter", format_duration(spec.jitter.ToTimedelta()) if spec.HasField("jitter") else ""),
        ("overlap", enum_name(OverlapPolicy.DESCRIPTOR.values_by_number[spec.overlap]) or ""),
        ("catch up", _catch_up_text(spec)),
        ("fired", f"{schedule.fired_count} times"),
        ("skipped", skipped),
        ("last fired", instant_text(schedule, "last_fired_at")),
        ("last job", str(schedule.last_job_id) if schedule.last_job_id else ""),
        ("last outcome", state_name(schedule.last_outcome)),
        ("handler", job.handler),
        ("priority", str(job.priority) if job.priority else ""),
        ("key", key),
        ("labels", " ".join(f"{name}={value}" for name, value in sorted(job.labels.items()))),
        ("retry", retry_text(job.retry)),
        ("timeouts", timeouts_text(job.timeouts)),
        ("created", instant_text(schedule, "created_at")),
        ("updated", instant_text(schedule, "updated_at")),
    ]


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return "active" if schedule.HasField("next_fire_at") else "ended"


def _clock_text(spec: ScheduleSpec) -> str:
    if spec.WhichOneof("timing") != "cron":
        return ""
    gap = enum_name(CronTiming.GapPolicy.DESCRIPTOR.values_by_number[spec.cron.gap])
    fold = enum_name(CronTiming.FoldPolicy.DESCRIPTOR.values_by_number[spec.cron.fold])
    return f"gap {gap or 'run_after'}, fold {fold or 'first'}"


def _catch_up_text(spec: ScheduleSpec) -> str:
    policy = enum_name(CatchUpPolicy.DESCRIPTOR.values_by_number[spec.catch_up]) or ""
    window = f"within {format_duration(spec.catch_up_window.ToTimedelta())}" if spec.HasField("catch_up_window") else ""
    return " ".join(part for part in (policy, window) if part)
