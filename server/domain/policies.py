"""Policies that are only partly given, and how layers of them become the one policy of a job.

A job's policies come field by field from the request, else from the handler's registration, else from the namespace,
else from the server. They are resolved when the job is submitted and stored on it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from server.domain.job import Backoff, TimeLimits
from server.domain.retry import DELAY_LIMIT

_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """How to retry and how long to take, as far as one layer says; None leaves a field to the next layer.

    The fields are those of `Backoff` and `TimeLimits`.
    """

    max_attempts: int | None = None
    initial: timedelta | None = None
    multiplier: float | None = None
    maximum: timedelta | None = None
    non_retryable: tuple[str, ...] | None = None
    start: timedelta | None = None
    attempt: timedelta | None = None
    total: timedelta | None = None


NO_POLICIES: Final = Policies()

# What holds if nobody says otherwise.
SERVER_DEFAULTS: Final = Policies(
    max_attempts=4, initial=timedelta(seconds=1), multiplier=2.0, maximum=timedelta(hours=1), non_retryable=()
)


def overlay(first: Policies, second: Policies) -> Policies:
    """Return `first` with its gaps filled from `second`.

    `initial` may not be above `maximum`. If the two come from different layers and contradict each other, the one from
    `first` holds and the other follows it.
    """
    if first is NO_POLICIES:
        return second
    if second is NO_POLICIES:
        return first
    initial = second.initial if first.initial is None else first.initial
    maximum = second.maximum if first.maximum is None else first.maximum
    if initial is not None and maximum is not None and initial > maximum:
        if first.maximum is None:
            maximum = initial
        else:
            initial = maximum
    return Policies(
        max_attempts=second.max_attempts if first.max_attempts is None else first.max_attempts,
        initial=initial,
        multiplier=second.multiplier if first.multiplier is None else first.multiplier,
        maximum=maximum,
        non_retryable=second.non_retryable if first.non_retryable is None else first.non_retryable,
        start=second.start if first.start is None else first.start,
        attempt=second.attempt if first.attempt is None else first.attempt,
        total=second.total if first.total is None else first.total,
    )


def resolve(
    request: Policies, handler: Policies, namespace: Policies, server: Policies = SERVER_DEFAULTS
) -> tuple[Backoff, TimeLimits]:
    """Return the policies in force for a job: field by field the first layer that says something."""
    return settle(overlay(overlay(overlay(request, handler), namespace), server))


def settle(policies: Policies) -> tuple[Backoff, TimeLimits]:
    """Return complete policies; gaps are filled with the server's built-in defaults. No delay exceeds DELAY_LIMIT."""
    full = overlay(policies, SERVER_DEFAULTS)
    assert full.max_attempts is not None
    assert full.initial is not None
    assert full.multiplier is not None
    assert full.maximum is not None
    backoff = Backoff(
        max_attempts=full.max_attempts,
        initial=min(full.initial, DELAY_LIMIT),
        multiplier=full.multiplier,
        maximum=min(full.maximum, DELAY_LIMIT),
        non_retryable=full.non_retryable or (),
    )
    return backoff, TimeLimits(start=full.start, attempt=full.attempt, total=full.total)


def to_document(policies: Policies) -> bytes:
    """Return the JSON form in which defaults are stored: set fields only, durations in whole milliseconds."""
    document: dict[str, object] = {
        "max_attempts": policies.max_attempts,
        "initial_ms": _to_ms(policies.initial),
        "multiplier": policies.multiplier,
        "maximum_ms": _to_ms(policies.maximum),
        "non_retryable": None if policies.non_retryable is None else list(policies.non_retryable),
        "start_ms": _to_ms(policies.start),
        "attempt_ms": _to_ms(policies.attempt),
        "total_ms": _to_ms(policies.total),
    }
    given = {name: value for name, value in document.items() if value is not None}
    return json.dumps(given, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def from_document(document: bytes) -> Policies:
    """Read the form of `to_document`; fields of a newer version are passed over."""
    found = json.loads(document)
    if not isinstance(found, Mapping):
        raise ValueError("a document of policies has to be a JSON object")
    non_retryable = found.get("non_retryable")
    policies = Policies(
        max_attempts=found.get("max_attempts"),
        initial=_from_ms(found.get("initial_ms")),
        multiplier=found.get("multiplier"),
        maximum=_from_ms(found.get("maximum_ms")),
        non_retryable=None if non_retryable is None else tuple(non_retryable),
        start=_from_ms(found.get("start_ms")),
        attempt=_from_ms(found.get("attempt_ms")),
        total=_from_ms(found.get("total_ms")),
    )
    return NO_POLICIES if policies == NO_POLICIES else policies


def _to_ms(value: timedelta | None) -> int | None:
    return None if value is None else -(-value // _MILLISECOND)


def _from_ms(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)
