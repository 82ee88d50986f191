"""Schedules from and to their wire form."""

from collections.abc import Mapping
from typing import TypeVar

from shardwheel.v1 import schedule_pb2, schedule_service_pb2
from worker_sdk.codec import Codec
from worker_sdk.durations import as_timedelta
from worker_sdk.job_conversion import instant_from_proto, instant_to_proto, job_spec, state_from_proto
from worker_sdk.jobs import NewJob
from worker_sdk.policies import retry_from_proto, timeouts_from_proto
from worker_sdk.schedules import CatchUp, EnsuredSchedule, Fold, Gap, NewSchedule, Overlap, Schedule, ScheduleChange

Key = TypeVar("Key")
Value = TypeVar("Value")

_OVERLAPS: dict[Overlap, schedule_pb2.OverlapPolicy.ValueType] = {
    Overlap.SKIP: schedule_pb2.OVERLAP_SKIP,
    Overlap.BUFFER_ONE: schedule_pb2.OVERLAP_BUFFER_ONE,
    Overlap.BUFFER_ALL: schedule_pb2.OVERLAP_BUFFER_ALL,
    Overlap.CANCEL_RUNNING: schedule_pb2.OVERLAP_CANCEL_RUNNING,
    Overlap.ALLOW: schedule_pb2.OVERLAP_ALLOW,
}
_CATCH_UPS: dict[CatchUp, schedule_pb2.CatchUpPolicy.ValueType] = {
    CatchUp.ONE: schedule_pb2.CATCH_UP_ONE,
    CatchUp.ALL: schedule_pb2.CATCH_UP_ALL,
    CatchUp.NONE: schedule_pb2.CATCH_UP_NONE,
}
_GAPS: dict[Gap, schedule_pb2.CronTiming.GapPolicy.ValueType] = {
    Gap.RUN_AFTER: schedule_pb2.CronTiming.RUN_AFTER,
    Gap.SKIP: schedule_pb2.CronTiming.SKIP,
}
_FOLDS: dict[Fold, schedule_pb2.CronTiming.FoldPolicy.ValueType] = {
    Fold.FIRST: schedule_pb2.CronTiming.FIRST,
    Fold.BOTH: schedule_pb2.CronTiming.BOTH,
}
_CHANGES: dict[int, ScheduleChange] = {
    schedule_service_pb2.EnsureSchedulesResponse.CREATED: ScheduleChange.CREATED,
    schedule_service_pb2.EnsureSchedulesResponse.UPDATED: ScheduleChange.UPDATED,
    schedule_service_pb2.EnsureSchedulesResponse.UNCHANGED: ScheduleChange.UNCHANGED,
    schedule_service_pb2.EnsureSchedulesResponse.DELETED: ScheduleChange.DELETED,
}


def schedule_spec(schedule: NewSchedule, codec: Codec) -> schedule_pb2.ScheduleSpec:
    """Return the wire form of a definition, without its name. Raises `PayloadError` for an unusable payload."""
    message = schedule_pb2.ScheduleSpec(job=job_spec(_job_of(schedule), codec, retry_safe=False))
    if schedule.cron:
        message.cron.expression = schedule.cron
        message.cron.time_zone = schedule.time_zone
        if schedule.gap is not None:
            message.cron.gap = _GAPS[schedule.gap]
        if schedule.fold is not None:
            message.cron.fold = _FOLDS[schedule.fold]
    if schedule.every is not None:
        message.interval.every.FromTimedelta(as_timedelta(schedule.every, "every"))
        if schedule.anchor is not None:
            message.interval.anchor.CopyFrom(instant_to_proto(schedule.anchor, "anchor"))
    if schedule.once_at is not None:
        message.once_at.CopyFrom(instant_to_proto(schedule.once_at, "once_at"))
    if schedule.overlap is not None:
        message.overlap = _OVERLAPS[schedule.overlap]
    if schedule.catch_up is not None:
        message.catch_up = _CATCH_UPS[schedule.catch_up]
    if schedule.catch_up_window is not None:
        message.catch_up_window.FromTimedelta(as_timedelta(schedule.catch_up_window, "catch_up_window"))
    if schedule.start_at is not None:
        message.start_at.CopyFrom(instant_to_proto(schedule.start_at, "start_at"))
    if schedule.end_at is not None:
        message.end_at.CopyFrom(instant_to_proto(schedule.end_at, "end_at"))
    if schedule.jitter is not None:
        message.jitter.FromTimedelta(as_timedelta(schedule.jitter, "jitter"))
    return message


def schedule_from_proto(message: schedule_pb2.Schedule) -> Schedule:
    """Return the schedule of a wire form."""
    return Schedule(
        id=message.id,
        namespace=message.namespace,
        name=message.name,
        spec=_definition(message.name, message.spec),
        payload_content_type=message.spec.job.content_type,
        paused=message.paused,
        pause_note=message.pause_note,
        next_fire_at=instant_from_proto(message.next_fire_at) if message.HasField("next_fire_at") else None,
        last_fired_at=instant_from_proto(message.last_fired_at) if message.HasField("last_fired_at") else None,
        last_job_id=message.last_job_id or None,
        last_outcome=state_from_proto(message.last_outcome),
        fired_count=message.fired_count,
        skipped_counts=dict(message.skipped_counts),
        created_at=instant_from_proto(message.created_at) if message.HasField("created_at") else None,
        updated_at=instant_from_proto(message.updated_at) if message.HasField("updated_at") else None,
        etag=message.etag,
        description=message.description,
    )


def ensured_from_proto(result: schedule_service_pb2.EnsureSchedulesResponse.Result) -> EnsuredSchedule:
    """Return what became of one schedule."""
    return EnsuredSchedule(
        name=result.name,
        change=_CHANGES.get(result.change, ScheduleChange.UNCHANGED),
        next_fire_at=instant_from_proto(result.next_fire_at) if result.HasField("next_fire_at") else None,
    )


def _job_of(schedule: NewSchedule) -> NewJob:
    return NewJob(
        handler=schedule.handler,
        payload=schedule.payload,
        name=schedule.job_name,
        priority=schedule.priority,
        retry=schedule.retry,
        timeouts=schedule.timeouts,
        concurrency_key=schedule.concurrency_key,
        concurrency_limit=schedule.concurrency_limit,
        labels=schedule.labels,
    )


def _definition(name: str, spec: schedule_pb2.ScheduleSpec) -> NewSchedule:
    timing, job = spec.WhichOneof("timing"), spec.job
    cron = spec.cron if timing == "cron" else None
    interval = spec.interval if timing == "interval" else None
    return NewSchedule(
        name=name,
        handler=job.handler,
        payload=job.payload,
        cron=cron.expression if cron else "",
        time_zone=cron.time_zone if cron else "",
        gap=_key_of(_GAPS, cron.gap) if cron else None,
        fold=_key_of(_FOLDS, cron.fold) if cron else None,
        every=interval.every.ToTimedelta() if interval else None,
        anchor=instant_from_proto(interval.anchor) if interval and interval.HasField("anchor") else None,
        once_at=instant_from_proto(spec.once_at) if timing == "once_at" else None,
        overlap=_key_of(_OVERLAPS, spec.overlap),
        catch_up=_key_of(_CATCH_UPS, spec.catch_up),
        catch_up_window=spec.catch_up_window.ToTimedelta() if spec.HasField("catch_up_window") else None,
        start_at=instant_from_proto(spec.start_at) if spec.HasField("start_at") else None,
        end_at=instant_from_proto(spec.end_at) if spec.HasField("end_at") else None,
        jitter=spec.jitter.ToTimedelta() if spec.HasField("jitter") else None,
        job_name=job.name,
        priority=job.priority or None,
        retry=retry_from_proto(job.retry) if job.HasField("retry") else None,
        timeouts=timeouts_from_proto(job.timeouts) if job.HasField("timeouts") else None,
        concurrency_key=job.concurrency_key,
        concurrency_limit=job.concurrency_limit or None,
        labels=dict(job.labels),
    )


def _key_of(mapping: Mapping[Key, Value], value: Value) -> Key | None:
    return next((key for key, candidate in mapping.items() if candidate == value), None)
