"""A claimed job as a message of its handler's topic."""

from datetime import UTC, datetime
from typing import Final

from server.domain.job import ClaimedJob

# In the header "payload": the message is empty, the payload comes with the start of the attempt.
LEFT_OUT: Final = b"left-out"

# As the client library names it.
Headers = list[tuple[str, str | bytes | None]]


def key_of(job: ClaimedJob) -> bytes:
    """Return the key: the job's id in decimals."""
    return b"%d" % job.job_id


def headers_of(job: ClaimedJob, *, left_out: bool) -> Headers:
    """Return the headers: attempt, claim, deadline (when it is published again), and the submitter's trace."""
    headers: Headers = [("attempt", b"%d" % job.attempt), ("claim", b"%d" % job.claim)]
    if job.timeout_at is not None:
        headers.append(("deadline", _text(job.timeout_at)))
    if job.traceparent:
        headers.append(("traceparent", job.traceparent.encode()))
    if left_out:
        headers.append(("payload", LEFT_OUT))
    return headers


def _text(instant: datetime) -> bytes:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
