"""Between news and the messages that carry it. Messages that come in are valid, see `problem`."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from server.domain.due import DueJob
from server.domain.job import AttemptRef
from server.domain.sharding import shard_of_id
from server.engine.ports_peers import (
    AttemptAsked,
    AttemptDisclaimed,
    AttemptEnded,
    AttemptStarted,
    HandlersChanged,
    JobFinal,
    JobWatched,
    KeyFreed,
    News,
    ScheduleChanged,
    StopAttempt,
)
from shardwheel.v1 import peer_service_pb2 as pb
from shardwheel.v1 import worker_service_pb2 as worker

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_MICROSECONDS: Final = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX_HANDLER_ID: Final = (1 << 31) - 1
_REASONS: Final = {
    "requested": worker.CANCEL_REQUESTED,
    "timeout": worker.CANCEL_TIMEOUT,
    "superseded": worker.CANCEL_SUPERSEDED,
}
_NAMES: Final = {number: name for name, number in _REASONS.items()}


def request_of(node: str, news: Iterable[News]) -> pb.TellRequest:
    """Return the message with which `node` tells news."""
    request = pb.TellRequest(node=node)
    for one in news:
        _add(request, one)
    return request


def _add(request: pb.TellRequest, one: News) -> None:
    match one:
        case DueJob():
            request.pending_jobs.add(
                job_id=one.job_id, handler_id=one.handler_id, priority=one.priority, due_at_us=_micros(one.due_at)
            )
        case AttemptEnded():
            request.ended_attempts.add(
                job_id=one.ref.job_id, claim=one.ref.claim, final=one.final, key_told=one.key_told
            )
        case AttemptStarted():
            request.started_attempts.add(
                job_id=one.ref.job_id,
                claim=one.ref.claim,
                worker_id=one.worker_id,
                timeout_at_us=None if one.timeout_at is None else _micros(one.timeout_at),
            )
        case JobFinal():
            request.final_jobs.append(one.job_id)
        case JobWatched():
            request.watched_jobs.append(one.job_id)
        case KeyFreed():
            request.freed_keys.add(shard=one.shard, namespace_id=one.namespace_id, concurrency_key=one.key)
        case ScheduleChanged():
            at = None if one.next_fire_at is None else _micros(one.next_fire_at)
            request.schedules.add(shard=one.shard, next_fire_at_us=at)
        case StopAttempt():
            request.cancels.add(
                job_id=one.ref.job_id, claim=one.ref.claim, worker_id=one.worker_id, reason=_REASONS[one.reason]
            )
        case AttemptAsked():
            request.asked_attempts.add(job_id=one.ref.job_id, claim=one.ref.claim, worker_id=one.worker_id)
        case AttemptDisclaimed():
            request.disclaimed_attempts.add(job_id=one.ref.job_id, claim=one.ref.claim)
        case HandlersChanged():
            request.handlers_changed = True
        case _:
            assert_never(one)


def news_of(request: pb.TellRequest) -> Sequence[News]:
    """Return what a message tells: what has ended first, then what that makes possible."""
    news: list[News] = [
        AttemptEnded(AttemptRef(one.job_id, one.claim), final=one.final, key_told=one.key_told)
        for one in request.ended_attempts
    ]
    news += [
        AttemptStarted(
            AttemptRef(one.job_id, one.claim),
            one.worker_id,
            _instant(one.timeout_at_us) if one.HasField("timeout_at_us") else None,
        )
        for one in request.started_attempts
    ]
    news += [JobFinal(job_id) for job_id in request.final_jobs]
    news += [KeyFreed(one.shard, one.namespace_id, one.concurrency_key) for one in request.freed_keys]
    news += [
        DueJob(one.priority, _instant(one.due_at_us), one.job_id, shard_of_id(one.job_id), one.handler_id)
        for one in request.pending_jobs
    ]
    news += [
        ScheduleChanged(one.shard, _instant(one.next_fire_at_us) if one.HasField("next_fire_at_us") else None)
        for one in request.schedules
    ]
    news += [JobWatched(job_id) for job_id in request.watched_jobs]
    news += [
        StopAttempt(AttemptRef(one.job_id, one.claim), one.worker_id, _NAMES[one.reason]) for one in request.cancels
    ]
    news += [AttemptAsked(AttemptRef(one.job_id, one.claim), one.worker_id) for one in request.asked_attempts]
    news += [AttemptDisclaimed(AttemptRef(one.job_id, one.claim)) for one in request.disclaimed_attempts]
    if request.handlers_changed:
        news.append(HandlersChanged())
    return news


def problems(request: pb.TellRequest, shards: int) -> Iterator[tuple[str, object, str]]:
    """Find what is wrong with a message: (field, value, what would be right)."""
    if not request.node:
        yield "node", "", "is required"
    job_ids: dict[str, Iterable[int]] = {
        "pending_jobs": (one.job_id for one in request.pending_jobs),
        "ended_attempts": (one.job_id for one in request.ended_attempts),
        "started_attempts": (one.job_id for one in request.started_attempts),
        "cancels": (one.job_id for one in request.cancels),
        "asked_attempts": (one.job_id for one in request.asked_attempts),
        "disclaimed_attempts": (one.job_id for one in request.disclaimed_attempts),
        "final_jobs": request.final_jobs,
        "watched_jobs": request.watched_jobs,
    }
    for field, ids in job_ids.items():
        for number, job_id in enumerate(ids):
            if job_id <= 0 or shard_of_id(job_id) >= shards:
                yield f"{field}[{number}]", job_id, f"has to be the id of a job in one of {shards} shards"
    for number, pending in enumerate(request.pending_jobs):
        if not 1 <= pending.handler_id <= _MAX_HANDLER_ID:
            yield f"pending_jobs[{number}].handler_id", pending.handler_id, f"has to be from 1 to {_MAX_HANDLER_ID}"
        if not 1 <= pending.priority <= 5:
            yield f"pending_jobs[{number}].priority", pending.priority, "has to be from 1 to 5"
        if not 0 <= pending.due_at_us <= _MAX_MICROSECONDS:
            yield f"pending_jobs[{number}].due_at_us", pending.due_at_us, f"has to be from 0 to {_MAX_MICROSECONDS}"
    for number, schedule in enumerate(request.schedules):
        if not 0 <= schedule.shard < shards:
            yield f"schedules[{number}].shard", schedule.shard, f"has to be from 0 to {shards - 1}"
        if not 0 <= schedule.next_fire_at_us <= _MAX_MICROSECONDS:
            reason = f"has to be from 0 to {_MAX_MICROSECONDS}"
            yield f"schedules[{number}].next_fire_at_us", schedule.next_fire_at_us, reason
    for number, started in enumerate(request.started_attempts):
        if not 0 <= started.timeout_at_us <= _MAX_MICROSECONDS:
            reason = f"has to be from 0 to {_MAX_MICROSECONDS}"
            yield f"started_attempts[{number}].timeout_at_us", started.timeout_at_us, reason
        if started.worker_id <= 0:
            yield f"started_attempts[{number}].worker_id", started.worker_id, "has to be the number of a worker"
    for number, freed in enumerate(request.freed_keys):
        if not 0 <= freed.shard < shards:
            yield f"freed_keys[{number}].shard", freed.shard, f"has to be from 0 to {shards - 1}"
    for number, cancel in enumerate(request.cancels):
        if cancel.reason not in _NAMES:
            yield f"cancels[{number}].reason", cancel.reason, f"has to be one of {sorted(_NAMES)}"


def _micros(value: datetime) -> int:
    return min(max(0, (value - _EPOCH) // _MICROSECOND), _MAX_MICROSECONDS)


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
