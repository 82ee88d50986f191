"""What the execution logs say, job by job."""

from collections import Counter
from dataclasses import dataclass

from server.demo.execution_log import COMPLETED, End, Start
from server.domain.sharding import shard_of_id


@dataclass(slots=True, kw_only=True)
class Execution:
    """One entry into the handler. Instants are in seconds since 1970."""

    worker: str
    claim: int
    claimed_at: float
    started_at: float
    ended_at: float | None = None
    """None if it has not ended, which a killed worker's never will."""
    outcome: str = ""

    @property
    def completed(self) -> bool:
        """Whether the handler came to its end."""
        return self.outcome == COMPLETED


class Tally:
    """Collects lines of all workers, in any order but for that of each worker's own."""

    def __init__(self) -> None:
        self._executions: dict[int, list[Execution]] = {}
        self.completed = 0
        """Jobs with at least one completed execution."""
        self.completed_of: Counter[int] = Counter()
        """The same by shard."""
        self.running: Counter[str] = Counter()
        """Executions by worker that have not ended, those of killed workers included."""

    def add(self, record: Start | End) -> None:
        """Take in one line."""
        executions = self._executions.setdefault(record.job, [])
        match record:
            case Start():
                self.running[record.worker] += 1
                executions.append(
                    Execution(
                        worker=record.worker,
                        claim=record.claim,
                        claimed_at=record.claimed_at,
                        started_at=record.started_at,
                    )
                )
            case End():
                self._end(executions, record)

    def executions(self, job: int) -> list[Execution]:
        """Return the executions of a job, in the order in which they were read."""
        return self._executions.get(job, [])

    def _end(self, executions: list[Execution], end: End) -> None:
        for one in executions:
            if (one.worker, one.claim, one.ended_at) == (end.worker, end.claim, None):
                if end.outcome == COMPLETED and not any(other.completed for other in executions):
                    self.completed += 1
                    self.completed_of[shard_of_id(end.job)] += 1
                one.ended_at, one.outcome = end.ended_at, end.outcome
                self.running[end.worker] -= 1
                return
        raise ValueError(f"job {end.job}, claim {end.claim} has ended on {end.worker} without having started")
