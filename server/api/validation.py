"""The rules for what clients send. Every rule of the API is here.

Rules add what is wrong to `Problems`; `Problems.check` refuses the request with all of it at once. Work is bounded by
the size of the request, and nothing is stored before the rules have passed. What a rule lets pass, PostgreSQL can
store: no NUL, no lone surrogates, no instant or number out of range.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from server.api.errors import InvalidRequest
from server.domain.errors import InvalidInput
from server.domain.job import MAX_PRIORITY, MIN_PRIORITY
from server.domain.retry import DELAY_LIMIT
from shardwheel.v1.job_pb2 import Job, JobSpec, RetryPolicy, Timeouts

DEFAULT_NAMESPACE: Final = "default"

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_IDS: Final = 1000
MAX_NAME_CHARS: Final = 200
MAX_KEY_CHARS: Final = 200
MAX_NOTE_CHARS: Final = 1000
MAX_CONTENT_TYPE_CHARS: Final = 200
MAX_LABELS: Final = 32
MAX_LABEL_KEY_CHARS: Final = 63
MAX_LABEL_VALUE_CHARS: Final = 200
MAX_ATTEMPTS: Final = 1000
MAX_MULTIPLIER: Final = 100.0
MAX_ERROR_TYPES: Final = 100
MAX_ERROR_TYPE_CHARS: Final = 200
MAX_CONCURRENCY_LIMIT: Final = 10_000
MAX_SPAN: Final = timedelta(days=3660)
MAX_PAGE_TOKEN_CHARS: Final = 200

_NAMESPACE: Final = re.compile(r"[a-z0-9-]{1,63}")
_HANDLER: Final = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_SCHEDULE_NAME: Final = re.compile(r"[A-Za-z0-9._/:-]{1,200}")
_CONTENT_TYPE: Final = re.compile(r"[\x20-\x7e]*")
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_UNFIT: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_UNFIT_IN_NOTES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

_MIN_SECONDS: Final = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
_MAX_SECONDS: Final = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp())
_NANOS: Final = 1_000_000_000
_MAX_BIGINT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that an operator may set. Raise `InvalidInput` for a size above the hard limit."""

    payload_bytes: int = 256 * 1024
    batch_jobs: int = 1000
    batch_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.payload_bytes <= MAX_PAYLOAD_BYTES:
            raise InvalidInput("payload_bytes", self.payload_bytes, f"has to be from 1 to {MAX_PAYLOAD_BYTES}")
        if not 1 <= self.batch_jobs <= 1000:
            raise InvalidInput("batch_jobs", self.batch_jobs, "has to be from 1 to 1000")
        if not MAX_PAYLOAD_BYTES <= self.batch_bytes <= 4 * 1024 * 1024:
            raise InvalidInput("batch_bytes", self.batch_bytes, f"has to be from {MAX_PAYLOAD_BYTES} to 4194304")


class Problems:
    """Collects what is wrong with one request, up to `MAX_FOUND` violations."""

    MAX_FOUND: Final = 1000

    def __init__(self) -> None:
        self.found: list[InvalidInput] = []
        self.metadata: dict[str, str] = {}

    def add(self, field: str, value: object, reason: str) -> None:
        """Note that `field` has a value that is refused; `reason` says what would be right."""
        if len(self.found) < self.MAX_FOUND:
            self.found.append(InvalidInput(field, value, reason))

    def check(self) -> None:
        """Raise `InvalidRequest` if anything was noted."""
        if self.found:
            raise InvalidRequest(self.found, metadata=self.metadata)


def check_namespace(problems: Problems, name: str, field: str = "namespace") -> str:
    """Check the name of a namespace, and return it; empty means the default one."""
    if not name:
        return DEFAULT_NAMESPACE
    if not _NAMESPACE.fullmatch(name):
        problems.add(field, name, "takes lower-case letters, digits and '-', at most 63 characters")
    return name


def check_handler(problems: Problems, name: str, field: str = "handler") -> None:
    """Check the name of a handler, which is required."""
    if not _HANDLER.fullmatch(name):
        reason = "takes letters, digits and '._-/', 1 to 200 characters" if name else "is required"
        problems.add(field, name, reason)


def check_schedule_name(problems: Problems, name: str, field: str = "name") -> None:
    """Check the name of a schedule, which is required."""
    if not _SCHEDULE_NAME.fullmatch(name):
        reason = "takes letters, digits and '._-/:', 1 to 200 characters" if name else "is required"
        problems.add(field, name, reason)


def check_node(problems: Problems, field: str, name: str) -> None:
    """Check the name of a node, which is required."""
    if not _NODE.fullmatch(name):
        reason = "takes letters, digits and '._:-', 1 to 128 characters" if name else "is required"
        problems.add(field, name, reason)


def check_id(problems: Problems, value: int, field: str = "id") -> None:
    """Check the id of a job or schedule, which is required."""
    if not 1 <= value <= _MAX_BIGINT:
        problems.add(field, value, "has to be the id that a submit answered with, a positive number")


def check_ids(problems: Problems, field: str, values: Sequence[int]) -> None:
    """Check a list of ids of jobs: 1 to 1000."""
    if not 1 <= len(values) <= MAX_IDS:
        problems.add(field, f"{len(values)} ids", f"takes 1 to {MAX_IDS}")
        return
    for index, value in enumerate(values):
        check_id(problems, value, f"{field}[{index}]")


def check_text(problems: Problems, field: str, text: str, limit: int, *, lines: bool = False) -> None:
    """Check a text for people: at most `limit` characters, no control characters (line breaks only if `lines`)."""
    if len(text) > limit:
        problems.add(field, text, f"takes at most {limit} characters, this has {len(text)}")
    elif unfit := (_UNFIT_IN_NOTES if lines else _UNFIT).search(text):
        place = f"character {unfit.start() + 1} is U+{ord(unfit[0]):04X}"
        problems.add(field, text, f"must not hold control characters or lone surrogates: {place}")


def check_note(problems: Problems, field: str, note: str) -> None:
    """Check a note or reason for people."""
    check_text(problems, field, note, MAX_NOTE_CHARS, lines=True)


def check_instant(problems: Problems, field: str, value: Timestamp) -> None:
    """Check an instant: well-formed, and of the years 2000 to 2199."""
    if not 0 <= value.nanos < _NANOS:
        problems.add(field, f"{value.nanos} nanos", "has nanos from 0 to 999999999")
    elif not _MIN_SECONDS <= value.seconds < _MAX_SECONDS:
        problems.add(field, f"{value.seconds} s after 1970", "has to be of the years 2000 to 2199")


def check_span(
    problems: Problems, field: str, value: Duration, *, most: timedelta = MAX_SPAN, positive: bool = False
) -> bool:
    """Check a length of time: well-formed, not negative (not zero either if `positive`), at most `most`."""
    seconds, nanos = value.seconds, value.nanos
    if not -_NANOS < nanos < _NANOS or (seconds > 0 > nanos) or (seconds < 0 < nanos):
        problems.add(field, f"{seconds} s and {nanos} nanos", "has nanos below 1e9 with the sign of the seconds")
        return False
    text = f"{seconds + nanos / _NANOS:g} s"
    if seconds < 0 or nanos < 0 or (positive and not seconds and not nanos):
        problems.add(
            field, text, "has to be above 0; leave it out for no limit" if positive else "must not be negative"
        )
        return False
    if seconds + (nanos > 0) > most.total_seconds():
        problems.add(field, text, f"is at most {most.days} days" if most.days else f"is at most {most.seconds} s")
        return False
    return True


def check_labels(problems: Problems, field: str, labels: Mapping[str, str]) -> None:
    """Check labels of a job, or a filter by labels."""
    if len(labels) > MAX_LABELS:
        problems.add(field, f"{len(labels)} labels", f"takes at most {MAX_LABELS}")
        return
    for key, value in labels.items():
        place = f"{field}[{json.dumps(key[:MAX_LABEL_KEY_CHARS])}]"
        if not key:
            problems.add(place, key, "has an empty key")
        check_text(problems, place, key, MAX_LABEL_KEY_CHARS)
        check_text(problems, place, value, MAX_LABEL_VALUE_CHARS)


def check_retry(problems: Problems, field: str, retry: RetryPolicy) -> None:
    """Check a retry policy."""
    if retry.max_attempts and not 1 <= retry.max_attempts <= MAX_ATTEMPTS:
        problems.add(f"{field}.max_attempts", retry.max_attempts, f"has to be from 1 to {MAX_ATTEMPTS}; 0 is default")
    if retry.multiplier != 0 and not 1 <= retry.multiplier <= MAX_MULTIPLIER:
        problems.add(f"{field}.multiplier", retry.multiplier, f"has to be from 1 to {MAX_MULTIPLIER:g}; 0 is default")
    sound = True
    for name in ("initial_delay", "max_delay"):
        if retry.HasField(name):
            sound &= check_span(problems, f"{field}.{name}", getattr(retry, name), most=DELAY_LIMIT)
    if sound and retry.HasField("initial_delay") and retry.HasField("max_delay"):
        first, most = retry.initial_delay, retry.max_delay
        if (first.seconds, first.nanos) > (most.seconds, most.nanos):
            problems.add(f"{field}.initial_delay", f"{first.seconds} s", f"is at most max_delay, {most.seconds} s")
    _check_error_types(problems, f"{field}.non_retryable_error_types", retry.non_retryable_error_types)


def _check_error_types(problems: Problems, field: str, names: Sequence[str]) -> None:
    if len(names) > MAX_ERROR_TYPES:
        problems.add(field, f"{len(names)} types", f"takes at most {MAX_ERROR_TYPES}")
        return
    for index, name in enumerate(names):
        if not name:
            problems.add(f"{field}[{index}]", name, "must not be empty")
        check_text(problems, f"{field}[{index}]", name, MAX_ERROR_TYPE_CHARS)


def check_timeouts(problems: Problems, field: str, timeouts: Timeouts) -> None:
    """Check limits on time: each that is given is above zero."""
    for descriptor, value in timeouts.ListFields():
        check_span(problems, f"{field}.{descriptor.name}", value, positive=True)


def check_job(problems: Problems, field: str, spec: JobSpec, limits: Limits) -> None:
    """Check what is asked to be run; `field` is the path of `spec` in the request."""
    check_handler(problems, spec.handler, f"{field}.handler")
    size = len(spec.payload)
    if size > limits.payload_bytes:
        advice = f"takes at most {limits.payload_bytes} bytes; store larger data elsewhere and submit a reference to it"
        problems.add(f"{field}.payload", f"{size} bytes", advice)
    if spec.content_type:
        _check_content_type(problems, f"{field}.content_type", spec.content_type)
    if spec.name:
        check_text(problems, f"{field}.name", spec.name, MAX_NAME_CHARS)
    if spec.priority and not MIN_PRIORITY <= spec.priority <= MAX_PRIORITY:
        reason = f"has to be from {MIN_PRIORITY} (most urgent) to {MAX_PRIORITY}, or 0 for the default"
        problems.add(f"{field}.priority", spec.priority, reason)
    if (due := spec.WhichOneof("due")) is not None:
        if due == "due_at":
            check_instant(problems, f"{field}.due_at", spec.due_at)
        else:
            check_span(problems, f"{field}.delay", spec.delay)
    if spec.HasField("retry"):
        check_retry(problems, f"{field}.retry", spec.retry)
    if spec.HasField("timeouts"):
        check_timeouts(problems, f"{field}.timeouts", spec.timeouts)
    _check_keys(problems, field, spec)
    if spec.labels:
        check_labels(problems, f"{field}.labels", spec.labels)
    if spec.traceparent and not _TRACEPARENT.fullmatch(spec.traceparent):
        reason = "has to be a W3C trace context of version 00: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>"
        problems.add(f"{field}.traceparent", spec.traceparent, reason)


def _check_content_type(problems: Problems, field: str, text: str) -> None:
    if len(text) > MAX_CONTENT_TYPE_CHARS or not _CONTENT_TYPE.fullmatch(text):
        reason = f"has to be a media type in printable ASCII, at most {MAX_CONTENT_TYPE_CHARS} characters"
        problems.add(field, text, reason)


def _check_keys(problems: Problems, field: str, spec: JobSpec) -> None:
    if spec.dedupe_key:
        check_text(problems, f"{field}.dedupe_key", spec.dedupe_key, MAX_KEY_CHARS)
    if spec.HasField("dedupe_ttl"):
        check_span(problems, f"{field}.dedupe_ttl", spec.dedupe_ttl)
        if not spec.dedupe_key:
            problems.add(f"{field}.dedupe_ttl", f"{spec.dedupe_ttl.seconds} s", "needs a dedupe_key")
    if spec.concurrency_key:
        check_text(problems, f"{field}.concurrency_key", spec.concurrency_key, MAX_KEY_CHARS)
    if spec.concurrency_limit:
        if not 1 <= spec.concurrency_limit <= MAX_CONCURRENCY_LIMIT:
            reason = f"has to be from 1 to {MAX_CONCURRENCY_LIMIT}; 0 means 1"
            problems.add(f"{field}.concurrency_limit", spec.concurrency_limit, reason)
        elif not spec.concurrency_key:
            problems.add(f"{field}.concurrency_limit", spec.concurrency_limit, "needs a concurrency_key")


def check_batch(problems: Problems, specs: Sequence[JobSpec], size: int, limits: Limits) -> None:
    """Check the jobs of a batch whose request has `size` bytes; the refused items are named in the metadata."""
    if not specs:
        problems.add("jobs", "no jobs", f"takes 1 to {limits.batch_jobs}")
    elif len(specs) > limits.batch_jobs:
        problems.add("jobs", f"{len(specs)} jobs", f"takes at most {limits.batch_jobs}; split them into batches")
        return
    if size > limits.batch_bytes:
        problems.add("jobs", f"{size} bytes", f"takes at most {limits.batch_bytes} bytes; split them into batches")
        return
    refused = []
    for index, spec in enumerate(specs):
        own = Problems()
        check_job(own, f"jobs[{index}]", spec, limits)
        if own.found:
            refused.append(index)
            room = Problems.MAX_FOUND - len(problems.found)
            problems.found += own.found[:room]
    if refused:
        problems.metadata["refused_count"] = str(len(refused))
        problems.metadata["refused_items"] = _ranges(refused)


def _ranges(indexes: Sequence[int]) -> str:
    """Return ascending numbers in the form "0-2,7", cut to what fits into the error."""
    parts: list[str] = []
    start = previous = indexes[0]
    for index in [*indexes[1:], -1]:
        if index == previous + 1:
            previous = index
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = index
    text = ",".join(parts)
    return text if len(text) <= 400 else text[:400].rpartition(",")[0] + ",…"


def check_states(problems: Problems, field: str, states: Iterable[int]) -> None:
    """Check a filter by states: unspecified and unknown ones are refused."""
    names = ", ".join(name for name, number in Job.State.items() if number)
    for state in sorted(set(states)):
        if not Job.PENDING <= state <= Job.CANCELLED:
            problems.add(field, state, f"takes {names}")


def check_enum(problems: Problems, field: str, value: int, served: Collection[int], names: str) -> None:
    """Check a value of an enum; `names` says which are served."""
    if value not in served:
        problems.add(field, value, f"takes {names}")


def check_page(problems: Problems, size: int, token: str) -> None:
    """Check the size and the token of a page."""
    if size < 0:
        problems.add("page_size", size, "must not be negative; 0 means the default")
    if len(token) > MAX_PAGE_TOKEN_CHARS or not token.isascii():
        problems.add("page_token", token, "has to be the next_page_token of the page before")
