"""When a failed try is tried again: exponential back-off with full jitter, as pure functions.

The delay before try n+1 is drawn evenly from 0 to min(maximum, initial * multiplier^(n-1)). Drawing from the whole span
("full jitter") spreads a crowd of jobs that failed together best; source: M. Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015. Policies are validated where they come in; whatever is stored, a delay comes out.
"""

import math
from datetime import timedelta
from typing import Final

from server.domain.job import Backoff

DELAY_LIMIT: Final = timedelta(days=30)
"""No delay between two tries is longer, whatever a policy or a worker says."""

_ZERO: Final = timedelta(0)


def delay_bound(backoff: Backoff, attempt: int) -> timedelta:
    """Return the upper bound of the delay after try number `attempt` (from 1) has failed."""
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, not {attempt}")
    initial, maximum = backoff.initial, min(backoff.maximum, DELAY_LIMIT)
    if initial <= _ZERO or maximum <= _ZERO:
        return _ZERO
    if initial >= maximum:
        return maximum
    # In logarithms, for multiplier ** attempt leaves the range of floats long before attempts do.
    multiplier = max(1.0, backoff.multiplier)
    if (attempt - 1) * math.log(multiplier) >= math.log(maximum / initial):
        return maximum
    return min(maximum, initial * multiplier ** (attempt - 1))


def delay(backoff: Backoff, attempt: int, draw: float, retry_after: timedelta | None = None) -> timedelta:
    """Return how long to wait after try number `attempt` (from 1) has failed, from 0 to DELAY_LIMIT.

    `draw` is a random number from [0, 1); evenly distributed draws give evenly distributed delays. `retry_after` is
    the least delay that the worker asked for; it wins over the policy's maximum, not over DELAY_LIMIT.
    """
    if not 0.0 <= draw < 1.0:
        raise ValueError(f"draw has to be in [0, 1), not {draw}")
    drawn = delay_bound(backoff, attempt) * draw
    return drawn if retry_after is None else max(drawn, min(retry_after, DELAY_LIMIT))
