"""When a failed try is tried again: exponential back-off with full jitter, as pure functions.

The delay before try n+1 is drawn evenly from 0 to min(max_delay, initial_delay * multiplier^(n-1)). Drawing from the
whole span ("full jitter") spreads a crowd of jobs that failed together best; source: M. Brooker, "Exponential Backoff
And Jitter", AWS Architecture Blog, 2015.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from server.domain.errors import InvalidInput

DELAY_LIMIT = timedelta(days=30)
"""No delay between two tries is longer, whatever a policy or a worker says."""

ATTEMPTS_LIMIT = 1_000_000
MULTIPLIER_LIMIT = 1000.0
ERROR_TYPES_LIMIT = 100
ERROR_TYPE_CHARS_LIMIT = 200

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How failed tries of a job are tried again. Raise InvalidInput if a value or the relation of two is impossible.

    `max_attempts` counts the first try too. `initial_delay` is the upper bound of the first delay, which grows by
    `multiplier` per try up to `max_delay`. Errors whose type is one of `non_retryable_error_types` end the job at once.
    """

    max_attempts: int = 4
    initial_delay: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    non_retryable_error_types: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= ATTEMPTS_LIMIT:
            _refuse("max_attempts", self.max_attempts, f"has to be from 1 to {ATTEMPTS_LIMIT}; 1 means no retry")
        if not 1.0 <= self.multiplier <= MULTIPLIER_LIMIT:
            _refuse("multiplier", self.multiplier, f"has to be from 1 to {MULTIPLIER_LIMIT:g}")
        if not _ZERO <= self.max_delay <= DELAY_LIMIT:
            _refuse("max_delay", self.max_delay, f"has to be from 0 to {DELAY_LIMIT.days} days")
        if not _ZERO <= self.initial_delay <= self.max_delay:
            _refuse("initial_delay", self.initial_delay, f"has to be from 0 to max_delay, which is {self.max_delay}")
        if len(self.non_retryable_error_types) > ERROR_TYPES_LIMIT:
            count = len(self.non_retryable_error_types)
            _refuse("non_retryable_error_types", f"{count} types", f"takes at most {ERROR_TYPES_LIMIT} types")
        for name in self.non_retryable_error_types:
            if not name or len(name) > ERROR_TYPE_CHARS_LIMIT:
                reason = f"takes type names of 1 to {ERROR_TYPE_CHARS_LIMIT} characters"
                _refuse("non_retryable_error_types", name, reason)


def _refuse(field: str, value: object, reason: str) -> None:
    raise InvalidInput(f"retry.{field}", value, reason)


class FinalReason(StrEnum):
    """Why a failed try is the last one."""

    NOT_RETRYABLE = "not_retryable"
    """The worker says that another try is of no use."""
    ERROR_TYPE = "non_retryable_error_type"
    """The policy names the type of the error."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """It was the last of `max_attempts`."""
    DEADLINE = "total_timeout"
    """The next try would not start before the job's deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again when `delay` has passed."""

    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """Do not try again: the job has failed."""

    reason: FinalReason


def delay_bound(policy: RetryPolicy, attempt: int) -> timedelta:
    """Return the upper bound of the delay after try number `attempt` (from 1) has failed."""
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, not {attempt}")
    if not policy.initial_delay:
        return _ZERO
    # In logarithms, for multiplier ** attempt leaves the range of floats long before attempts do.
    growth = (attempt - 1) * math.log(policy.multiplier)
    if growth >= math.log(policy.max_delay / policy.initial_delay):
        return policy.max_delay
    return min(policy.max_delay, policy.initial_delay * policy.multiplier ** (attempt - 1))


def delay(policy: RetryPolicy, attempt: int, draw: float, retry_after: timedelta | None = None) -> timedelta:
    """Return how long to wait after try number `attempt` (from 1) has failed, from 0 to DELAY_LIMIT.

    `draw` is a random number from [0, 1); evenly distributed draws give evenly distributed delays. `retry_after` is
    the least delay that the worker asked for; it wins over the policy's `max_delay`, not over DELAY_LIMIT.
    """
    if not 0.0 <= draw < 1.0:
        raise ValueError(f"draw has to be in [0, 1), not {draw}")
    drawn = delay_bound(policy, attempt) * draw
    return drawn if retry_after is None else max(drawn, min(retry_after, DELAY_LIMIT))


def decide(
    *,
    policy: RetryPolicy,
    attempt: int,
    retryable: bool,
    error_type: str,
    now: datetime,
    draw: float,
    retry_after: timedelta | None = None,
    deadline_at: datetime | None = None,
) -> Retry | Final:
    """Decide what follows the failure of try number `attempt` (from 1) at `now`.

    The failure is what the worker reported: `retryable`, `error_type` (for Python the exception's class name) and
    `retry_after`. `draw` is a random number from [0, 1), as in `delay`. `deadline_at` ends all tries of the job.
    """
    if not retryable:
        return Final(reason=FinalReason.NOT_RETRYABLE)
    if error_type in policy.non_retryable_error_types:
        return Final(reason=FinalReason.ERROR_TYPE)
    if attempt >= policy.max_attempts:
        return Final(reason=FinalReason.ATTEMPTS_EXHAUSTED)
    wait = delay(policy, attempt, draw, retry_after)
    if deadline_at is not None and wait >= deadline_at - now:
        return Final(reason=FinalReason.DEADLINE)
    return Retry(delay=wait)
