"""Schedules between messages and values: checking what is asked for, and showing what is stored."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar, assert_never

import orjson
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration

from server.api.convert import STATES, duration, instant, span, timestamp
from server.api.new_jobs import JobFactory
from server.api.validation import Limits, Problems, check_enum, check_instant, check_job, check_span
from server.domain.cron import parse_cron
from server.domain.cron_walk import FoldPolicy, GapPolicy
from server.domain.errors import InvalidInput
from server.domain.job import NewJob
from server.domain.schedule import (
    MAX_INTERVAL,
    MAX_JITTER,
    CatchUpPolicy,
    CronSpec,
    IntervalSpec,
    OnceSpec,
    OverlapPolicy,
    ScheduleTiming,
    TimingSpec,
)
from server.domain.stored_schedule import (
    DEFAULT_CATCH_UP_WINDOW,
    ScheduleDefinition,
    ScheduleDraft,
    StoredSchedule,
)
from server.domain.zones import DEFAULT_ZONE, load_zone
from server.store.schedule_documents import canonical_json
from shardwheel.v1 import schedule_pb2
from shardwheel.v1.job_pb2 import Job, JobSpec
from shardwheel.v1.schedule_pb2 import CronTiming, IntervalTiming, Schedule, ScheduleSpec

T = TypeVar("T")

_MILLISECOND: Final = timedelta(milliseconds=1)

# 0 stands for the default; what is missing is not served.
OVERLAPS: Final = {
    schedule_pb2.OVERLAP_POLICY_UNSPECIFIED: OverlapPolicy.SKIP,
    schedule_pb2.OVERLAP_SKIP: OverlapPolicy.SKIP,
    schedule_pb2.OVERLAP_BUFFER_ONE: OverlapPolicy.BUFFER_ONE,
    schedule_pb2.OVERLAP_ALLOW: OverlapPolicy.ALLOW,
}
CATCH_UPS: Final = {
    schedule_pb2.CATCH_UP_POLICY_UNSPECIFIED: CatchUpPolicy.ONE,
    schedule_pb2.CATCH_UP_ONE: CatchUpPolicy.ONE,
    schedule_pb2.CATCH_UP_ALL: CatchUpPolicy.ALL,
    schedule_pb2.CATCH_UP_NONE: CatchUpPolicy.NONE,
}
GAPS: Final = {
    CronTiming.GAP_POLICY_UNSPECIFIED: GapPolicy.RUN_AFTER,
    CronTiming.RUN_AFTER: GapPolicy.RUN_AFTER,
    CronTiming.SKIP: GapPolicy.SKIP,
}
FOLDS: Final = {
    CronTiming.FOLD_POLICY_UNSPECIFIED: FoldPolicy.FIRST,
    CronTiming.FIRST: FoldPolicy.FIRST,
    CronTiming.BOTH: FoldPolicy.BOTH,
}
_OVERLAP_NAMES: Final = "OVERLAP_SKIP, OVERLAP_BUFFER_ONE, OVERLAP_ALLOW; the other policies are not served yet"
_CATCH_UP_NAMES: Final = "CATCH_UP_ONE, CATCH_UP_ALL, CATCH_UP_NONE"
_EXPRESSION_FIELDS: Final = {"cron": "expression"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSpec:
    """A spec that passed all rules; its job still has to be made, for which its handler has to be known.

    `anchored` is as in ScheduleDraft.
    """

    name: str
    timing: ScheduleTiming
    anchored: bool
    overlap: OverlapPolicy
    catch_up: CatchUpPolicy
    catch_up_window: timedelta
    job: JobSpec

    def draft(self, jobs: JobFactory) -> ScheduleDraft:
        """Return the definition with its job; the policies that the spec leaves out are resolved here."""
        job = jobs.make(self.job)
        definition = ScheduleDefinition(
            timing=self.timing,
            job=replace(job, name=job.name or self.name),
            job_spec=_spec_text(self.job),
            overlap=self.overlap,
            catch_up=self.catch_up,
            catch_up_window=self.catch_up_window,
        )
        return ScheduleDraft(name=self.name, definition=definition, anchored=self.anchored)


def check_spec(
    problems: Problems, path: str, name: str, spec: ScheduleSpec, limits: Limits, now: datetime
) -> CheckedSpec | None:
    """Check a definition and return it; None if something was wrong with it.

    `path` is that of `spec` in the request, `name` decides what `H` in a cron expression stands for, `now` is the
    anchor of an interval without one.
    """
    before = len(problems.found)
    timing = check_timing(problems, path, name, spec, now)
    check_enum(problems, f"{path}.overlap", spec.overlap, OVERLAPS, _OVERLAP_NAMES)
    check_enum(problems, f"{path}.catch_up", spec.catch_up, CATCH_UPS, _CATCH_UP_NAMES)
    if spec.HasField("catch_up_window"):
        check_span(problems, f"{path}.catch_up_window", spec.catch_up_window)
    _check_job(problems, path, spec, limits)
    if len(problems.found) > before or timing is None:
        return None
    window = span(spec.catch_up_window) if spec.HasField("catch_up_window") else DEFAULT_CATCH_UP_WINDOW
    return CheckedSpec(
        name=name,
        timing=timing,
        anchored=spec.WhichOneof("timing") != "interval" or spec.interval.HasField("anchor"),
        overlap=OVERLAPS[spec.overlap],
        catch_up=CATCH_UPS[spec.catch_up],
        catch_up_window=_whole_ms(window),
        job=spec.job,
    )


def check_timing(problems: Problems, path: str, name: str, spec: ScheduleSpec, now: datetime) -> ScheduleTiming | None:
    """Check the part of a definition that says when it fires; the arguments are those of `check_spec`."""
    before = len(problems.found)
    for field in ("start_at", "end_at"):
        if spec.HasField(field):
            check_instant(problems, f"{path}.{field}", getattr(spec, field))
    if spec.HasField("jitter"):
        check_span(problems, f"{path}.jitter", spec.jitter, most=MAX_JITTER)
    found: TimingSpec | None = None
    match spec.WhichOneof("timing"):
        case "cron":
            found = _check_cron(problems, f"{path}.cron", name, spec.cron)
        case "interval":
            found = _check_interval(problems, f"{path}.interval", spec.interval, now)
        case "once_at":
            check_instant(problems, f"{path}.once_at", spec.once_at)
            found = OnceSpec(at=instant(spec.once_at)) if len(problems.found) == before else None
        case _:
            problems.add(path, "no timing", "needs one of cron, interval and once_at")
    if found is None or len(problems.found) > before:
        return None
    timing = found
    return _accepted(
        problems,
        path,
        lambda: ScheduleTiming(
            spec=timing,
            start_at=instant(spec.start_at) if spec.HasField("start_at") else None,
            end_at=instant(spec.end_at) if spec.HasField("end_at") else None,
            jitter=_whole_ms(span(spec.jitter)),
        ),
    )


def _check_cron(problems: Problems, path: str, name: str, cron: CronTiming) -> CronSpec | None:
    check_enum(problems, f"{path}.gap", cron.gap, GAPS, "RUN_AFTER, SKIP")
    check_enum(problems, f"{path}.fold", cron.fold, FOLDS, "FIRST, BOTH")
    zone = cron.time_zone or DEFAULT_ZONE
    known = _accepted(problems, path, lambda: load_zone(zone))
    expression = _accepted(problems, path, lambda: parse_cron(cron.expression, hash_key=name))
    if known is None or expression is None or cron.gap not in GAPS or cron.fold not in FOLDS:
        return None
    return CronSpec(expression=expression, time_zone=zone, gap=GAPS[cron.gap], fold=FOLDS[cron.fold])


def _check_interval(problems: Problems, path: str, interval: IntervalTiming, now: datetime) -> IntervalSpec | None:
    before = len(problems.found)
    if interval.HasField("anchor"):
        check_instant(problems, f"{path}.anchor", interval.anchor)
    if not interval.HasField("every"):
        problems.add(f"{path}.every", "", "is required")
    else:
        check_span(problems, f"{path}.every", interval.every, most=MAX_INTERVAL)
    if len(problems.found) > before:
        return None
    anchor = instant(interval.anchor) if interval.HasField("anchor") else now
    return _accepted(problems, path, lambda: IntervalSpec(every=span(interval.every), anchor=anchor))


def _check_job(problems: Problems, path: str, spec: ScheduleSpec, limits: Limits) -> None:
    if not spec.HasField("job"):
        problems.add(f"{path}.job", "", "is required")
        return
    job = spec.job
    check_job(problems, f"{path}.job", job, limits)
    for field in ("due_at", "delay", "dedupe_ttl"):
        if job.HasField(field):
            problems.add(
                f"{path}.job.{field}", "a value", "has to be empty: the schedule decides when its jobs are due"
            )
    if job.dedupe_key:
        reason = "has to be empty: a firing makes at most one job by itself"
        problems.add(f"{path}.job.dedupe_key", ascii(job.dedupe_key)[1:-1], reason)
    if OVERLAPS.get(spec.overlap) is OverlapPolicy.BUFFER_ONE and job.concurrency_limit > 1:
        reason = "has to be 1 (or 0) with OVERLAP_BUFFER_ONE, under which jobs of the schedule run one after the other"
        problems.add(f"{path}.job.concurrency_limit", job.concurrency_limit, reason)


def _accepted(problems: Problems, path: str, make: Callable[[], T]) -> T | None:
    """Return what `make` makes; a refusal is noted under `path`."""
    try:
        return make()
    except InvalidInput as error:
        field = _EXPRESSION_FIELDS.get(error.field, error.field)
        problems.add(f"{path}.{field}", error.value, error.reason)
        return None


def spec_message(definition: ScheduleDefinition) -> ScheduleSpec:
    """Return a definition with defaults filled in; the job is shown as it was asked for."""
    timing = definition.timing
    message = ScheduleSpec(
        job=job_spec_message(definition.job, definition.job_spec),
        overlap=schedule_pb2.OverlapPolicy.ValueType(definition.overlap),
        catch_up=schedule_pb2.CatchUpPolicy.ValueType(definition.catch_up),
        catch_up_window=duration(definition.catch_up_window),
        start_at=None if timing.start_at is None else timestamp(timing.start_at),
        end_at=None if timing.end_at is None else timestamp(timing.end_at),
        jitter=_jitter(timing.jitter),
    )
    match timing.spec:
        case CronSpec() as cron:
            message.cron.expression = cron.expression.canonical
            message.cron.time_zone = cron.time_zone
            message.cron.gap = CronTiming.GapPolicy.ValueType(cron.gap)
            message.cron.fold = CronTiming.FoldPolicy.ValueType(cron.fold)
        case IntervalSpec() as interval:
            message.interval.every.CopyFrom(duration(interval.every))
            message.interval.anchor.CopyFrom(timestamp(interval.anchor))
        case OnceSpec() as once:
            message.once_at.CopyFrom(timestamp(once.at))
        case _:
            assert_never(timing.spec)
    return message


def job_spec_message(job: NewJob, job_spec: bytes) -> JobSpec:
    """Return the job of a definition as it was asked for."""
    message = json_format.ParseDict(orjson.loads(job_spec), JobSpec(), ignore_unknown_fields=True)
    message.payload = job.payload
    return message


def schedule_message(schedule: StoredSchedule, namespace: str) -> Schedule:
    """Return a schedule as clients see it."""
    return Schedule(
        id=schedule.schedule_id,
        namespace=namespace,
        name=schedule.name,
        spec=spec_message(schedule.definition),
        paused=schedule.paused,
        pause_note=schedule.pause_note,
        next_fire_at=None if schedule.next_fire_at is None else timestamp(schedule.next_fire_at),
        last_fired_at=None if schedule.last_fired_at is None else timestamp(schedule.last_fired_at),
        last_job_id=schedule.last_job_id or 0,
        last_outcome=Job.STATE_UNSPECIFIED if schedule.last_outcome is None else STATES[schedule.last_outcome],
        fired_count=schedule.fired_count,
        skipped_counts=schedule.skipped_counts,
        created_at=timestamp(schedule.created_at),
        updated_at=timestamp(schedule.updated_at),
        etag=etag_of(schedule),
        description=describe_timing(schedule.definition.timing),
    )


def etag_of(schedule: StoredSchedule) -> str:
    """Return the etag: another one after every change, and after the schedule was deleted and made again."""
    return f"{schedule.schedule_id:x}-{schedule.version}"


def describe_timing(timing: ScheduleTiming) -> str:
    """Return words that explain when a schedule fires."""
    match timing.spec:
        case CronSpec() as cron:
            return f"{cron.expression.description} ({cron.time_zone})"
        case IntervalSpec() as interval:
            return f"Every {_words(interval.every)}, counted from {_utc(interval.anchor)}"
        case OnceSpec() as once:
            return f"Once, at {_utc(once.at)}"
        case _:
            assert_never(timing.spec)


def _words(value: timedelta) -> str:
    seconds = value.seconds % 60 + value.microseconds / 1_000_000
    parts = [(value.days, "d"), (value.seconds // 3600, "h"), (value.seconds // 60 % 60, "min"), (seconds, "s")]
    return " ".join(f"{number:g} {unit}" for number, unit in parts if number)


def _utc(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _jitter(value: timedelta) -> Duration | None:
    return duration(value) if value else None


def _spec_text(spec: JobSpec) -> bytes:
    bare = JobSpec()
    bare.CopyFrom(spec)
    bare.ClearField("payload")
    return canonical_json(json_format.MessageToDict(bare, preserving_proto_field_name=True))


def _whole_ms(value: timedelta) -> timedelta:
    """Round up to whole milliseconds, in which these lengths are stored."""
    return -(-value // _MILLISECOND) * _MILLISECOND
