"""Published jobs that a consumer has started, as the engine and the store talk about them."""

from dataclasses import dataclass
from datetime import datetime

from server.domain.job import ClaimedJob


@dataclass(frozen=True, slots=True)
class Started:
    """The worker, the database clock, and the attempts that are the worker's now; their payload as far as it was
    wanted."""

    worker_id: int
    now: datetime
    jobs: list[ClaimedJob]
