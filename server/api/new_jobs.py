"""From what a client asks for to the job that is stored: defaults, policies, due time, dedupe key."""

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import orjson

from server.api.convert import instant, policies_of, span
from server.domain.job import DEFAULT_PRIORITY, Backoff, DedupeKey, JobState, NewJob, Submitted, TimeLimits
from server.domain.policies import NO_POLICIES, SERVER_DEFAULTS, Policies, resolve, to_document
from server.store.catalog import Handler, Namespace
from server.store.jobs_read import JobRecord
from shardwheel.v1.job_pb2 import JobSpec

_MICROSECOND: Final = timedelta(microseconds=1)
_NO_TIME: Final = timedelta(0)


class JobFactory:
    """Makes jobs of one namespace, for one request."""

    def __init__(
        self, namespace: Namespace, handlers: Mapping[str, Handler], server: Policies = SERVER_DEFAULTS
    ) -> None:
        self._namespace = namespace
        self._handlers = handlers
        self._server = server
        self._defaults: dict[str, tuple[Backoff, TimeLimits]] = {}

    def make(self, spec: JobSpec) -> NewJob:
        """Return the job that a valid `spec` asks for."""
        requested = NO_POLICIES
        if spec.HasField("retry") or spec.HasField("timeouts"):
            requested = policies_of(spec.retry, spec.timeouts)
        backoff, limits = self._policies(spec.handler, requested)
        due = spec.WhichOneof("due")
        labels = orjson.dumps(dict(spec.labels), option=orjson.OPT_SORT_KEYS) if spec.labels else None
        return NewJob(
            namespace_id=self._namespace.namespace_id,
            handler_id=self._handlers[spec.handler].handler_id,
            payload=spec.payload,
            content_type=spec.content_type,
            name=spec.name,
            priority=spec.priority or DEFAULT_PRIORITY,
            due_at=instant(spec.due_at) if due == "due_at" else None,
            delay=span(spec.delay) if due == "delay" else _NO_TIME,
            backoff=backoff,
            limits=limits,
            dedupe=_dedupe(spec, requested, labels) if spec.dedupe_key else None,
            concurrency_key=spec.concurrency_key or None,
            concurrency_limit=spec.concurrency_limit or 1,
            labels=labels,
            traceparent=spec.traceparent or None,
        )

    def _policies(self, handler: str, requested: Policies) -> tuple[Backoff, TimeLimits]:
        if requested is not NO_POLICIES:
            return resolve(requested, self._handlers[handler].policies, self._namespace.policies, self._server)
        found = self._defaults.get(handler)
        if found is None:
            found = resolve(NO_POLICIES, self._handlers[handler].policies, self._namespace.policies, self._server)
            self._defaults[handler] = found
        return found


def _dedupe(spec: JobSpec, requested: Policies, labels: bytes | None) -> DedupeKey:
    return DedupeKey(key=spec.dedupe_key, ttl=span(spec.dedupe_ttl), content_hash=content_hash(spec, requested, labels))


def content_hash(spec: JobSpec, requested: Policies, labels: bytes | None) -> bytes:
    """Return a hash of what a submit asks for, the same for every way to say it.

    Two submits with one dedupe key and different hashes ask for different jobs. The trace context and the key itself do
    not count; policies count as requested, for their defaults may change between a submit and its repetition.
    """
    due = spec.WhichOneof("due")
    content = [
        spec.handler,
        spec.content_type,
        spec.name,
        spec.priority or DEFAULT_PRIORITY,
        due,
        span(spec.delay) // _MICROSECOND if due == "delay" else instant(spec.due_at) if due else None,
        to_document(requested).decode(),
        labels.decode() if labels else None,
        spec.concurrency_key,
        (spec.concurrency_limit or 1) if spec.concurrency_key else 0,
    ]
    head = orjson.dumps(content)
    return hashlib.sha256(len(head).to_bytes(4, "big") + head + spec.payload).digest()


def created_record(job: NewJob, submitted: Submitted) -> JobRecord:
    """Return the record of a job that was just created, without reading it back."""
    due_at, created_at = submitted.due_at, submitted.created_at
    assert due_at is not None
    assert created_at is not None
    return JobRecord(
        job_id=submitted.job_id,
        namespace_id=job.namespace_id,
        handler_id=job.handler_id,
        state=JobState.PENDING,
        name=job.name,
        priority=job.priority,
        due_at=due_at,
        content_type=job.content_type,
        attempt=0,
        claim=0,
        worker_id=None,
        backoff=job.backoff,
        limits=job.limits,
        deadline_at=None if job.limits.total is None else due_at + job.limits.total,
        concurrency_key=job.concurrency_key,
        concurrency_limit=job.concurrency_limit,
        labels=job.labels,
        created_at=created_at,
        started_at=None,
        finished_at=None,
        schedule_id=job.schedule_id,
        scheduled_for=job.scheduled_for,
        error_type=None,
        error_message=None,
        traceparent=job.traceparent,
        progress=None,
        result_content_type=None,
        open_claim=None,
        cancel_requested=False,
        worker="",
        payload=job.payload,
    )
