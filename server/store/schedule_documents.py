"""The JSON documents in which a schedule keeps its timing and its job.

Each carries the version `v` of its form; a reader refuses versions that it does not know, so that a node of an older
release leaves alone what it would misread. The resolved part of a job's document has the names that the statements of
`schedule_firing` read it by.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, assert_never

import orjson

from server.domain.cron import DIALECT, parse_cron
from server.domain.cron_walk import FoldPolicy, GapPolicy
from server.domain.job import Backoff, NewJob, TimeLimits
from server.domain.schedule import CronSpec, IntervalSpec, OnceSpec, TimingSpec

VERSION: Final = 1

_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)

Document: TypeAlias = Mapping[str, Any]


class UnreadableDocument(ValueError):
    """The document has a form that this version does not know."""


def timing_to_document(spec: TimingSpec) -> bytes:
    """Return the JSON form of a timing."""
    match spec:
        case CronSpec():
            document: dict[str, object] = {
                "kind": "cron",
                "expression": spec.expression.canonical,
                "dialect": spec.expression.dialect,
                "time_zone": spec.time_zone,
                "gap": int(spec.gap),
                "fold": int(spec.fold),
            }
        case IntervalSpec():
            document = {"kind": "interval", "every_us": spec.every // _MICROSECOND, "anchor": spec.anchor.isoformat()}
        case OnceSpec():
            document = {"kind": "once", "at": spec.at.isoformat()}
        case _:
            assert_never(spec)
    return orjson.dumps({"v": VERSION, **document})


def timing_from_document(text: bytes) -> TimingSpec:
    """Read the form of `timing_to_document`; raise UnreadableDocument."""
    document = _read(text)
    match document.get("kind"):
        case "cron" if document["dialect"] <= DIALECT:
            return CronSpec(
                expression=parse_cron(document["expression"]),
                time_zone=document["time_zone"],
                gap=GapPolicy(document["gap"]),
                fold=FoldPolicy(document["fold"]),
            )
        case "interval":
            every = document["every_us"] * _MICROSECOND
            return IntervalSpec(every=every, anchor=datetime.fromisoformat(document["anchor"]))
        case "once":
            return OnceSpec(at=datetime.fromisoformat(document["at"]))
        case _:
            raise UnreadableDocument(f"a timing of an unknown kind: {document!r}")


def job_to_document(job: NewJob, spec: bytes) -> bytes:
    """Return the JSON form of a job: `spec`, the JSON text of what was asked for, and what it was resolved to."""
    resolved = {
        "name": job.name,
        "content_type": job.content_type,
        "priority": job.priority,
        "max_attempts": job.backoff.max_attempts,
        "retry_initial_ms": _to_ms(job.backoff.initial),
        "retry_multiplier": job.backoff.multiplier,
        "retry_max_ms": _to_ms(job.backoff.maximum),
        "non_retryable": list(job.backoff.non_retryable) or None,
        "start_timeout_ms": _to_ms(job.limits.start),
        "attempt_timeout_ms": _to_ms(job.limits.attempt),
        "total_timeout_ms": _to_ms(job.limits.total),
        "concurrency_key": job.concurrency_key,
        "concurrency_limit": job.concurrency_limit,
        "labels": None if job.labels is None else orjson.Fragment(job.labels),
        "traceparent": job.traceparent,
    }
    return orjson.dumps({"v": VERSION, "spec": orjson.Fragment(spec), "resolved": resolved})


def job_from_document(text: bytes, namespace_id: int, handler_id: int, payload: bytes) -> tuple[NewJob, bytes]:
    """Read the form of `job_to_document`: the resolved job and the text of its spec; raise UnreadableDocument."""
    document = _read(text)
    found = document["resolved"]
    job = NewJob(
        namespace_id=namespace_id,
        handler_id=handler_id,
        payload=payload,
        content_type=found["content_type"],
        name=found["name"],
        priority=found["priority"],
        backoff=Backoff(
            max_attempts=found["max_attempts"],
            initial=found["retry_initial_ms"] * _MILLISECOND,
            multiplier=float(found["retry_multiplier"]),
            maximum=found["retry_max_ms"] * _MILLISECOND,
            non_retryable=tuple(found["non_retryable"] or ()),
        ),
        limits=TimeLimits(
            start=_from_ms(found["start_timeout_ms"]),
            attempt=_from_ms(found["attempt_timeout_ms"]),
            total=_from_ms(found["total_timeout_ms"]),
        ),
        concurrency_key=found["concurrency_key"],
        concurrency_limit=found["concurrency_limit"],
        labels=None if found["labels"] is None else canonical_json(found["labels"]),
        traceparent=found["traceparent"],
    )
    return job, canonical_json(document["spec"])


def canonical_json(document: object) -> bytes:
    """Return the one text of a JSON document: sorted names, no spaces."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _read(text: bytes) -> Document:
    document = orjson.loads(text)
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise UnreadableDocument(f"a document of another version than {VERSION}: {text[:200]!r}")
    return document


def _to_ms(value: timedelta | None) -> int | None:
    return None if value is None else -(-value // _MILLISECOND)


def _from_ms(value: int | None) -> timedelta | None:
    return None if value is None else value * _MILLISECOND
