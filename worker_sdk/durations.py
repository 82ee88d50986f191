"""Spans of time as users give them."""

import math
from datetime import timedelta

from worker_sdk.errors import ConfigurationError

Span = timedelta | float
"""A span of time: a `timedelta`, or a number of seconds."""


def as_timedelta(span: Span, field: str) -> timedelta:
    """Return the span as a `timedelta`. Raises `ConfigurationError` naming `field` if it is negative or no span."""
    if isinstance(span, bool) or not isinstance(span, timedelta | int | float):
        raise ConfigurationError(f"{field}: {span!r} is not a span of time; give a timedelta or seconds")
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(f"{field}: {span!r} is not a span of time; it has to be finite and not negative")
    try:
        return span if isinstance(span, timedelta) else timedelta(seconds=seconds)
    except OverflowError as error:
        raise ConfigurationError(f"{field}: {span!r} is too long") from error


def as_seconds(span: Span, field: str) -> float:
    """Return the span in seconds. Raises `ConfigurationError` naming `field` if it is negative or no span."""
    return as_timedelta(span, field).total_seconds()
