"""What a worker holds: running attempts, results that no node has acknowledged, and the epochs of shards.

Plain data, used from one thread. It answers the question that keeps jobs from being lost or run twice, which attempts
the worker has, and so it learns of an attempt before its handler is called, and forgets it after a node has the result.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardwheel.v1.worker_service_pb2 import AttemptRef, Interrupted, Report, Result
from worker_sdk.attempt import SHARD_MASK, Attempt

# Messages that are under way for longer than it takes to be asked about so many attempts do not happen.
_MAX_DISCLAIMED = 50_000


@dataclass(slots=True, kw_only=True)
class Finished:
    """A result that no node has acknowledged."""

    result: Result
    stream: str
    """Stream on which the attempt came."""
    owner: str
    """Node that owned the job's shard when it ended."""
    sent_on: str = ""
    """Stream that it was sent on last; empty if it has to be sent."""
    sent_at: float = 0.0
    """Monotonic time of that."""


class Ledger:
    """The book of a worker's attempts."""

    def __init__(self) -> None:
        self.running: dict[int, Attempt] = {}
        """By job id: attempts that run or wait in the worker."""
        self.lingering: set[Attempt] = set()
        """Attempts that are no longer the worker's, but whose handlers have not stopped yet."""
        self.finished: dict[tuple[int, int], Finished] = {}
        """By job id and claim."""
        self.used: Counter[tuple[str, str]] = Counter()
        """Running attempts by (stream on which they came, handler)."""
        self._epochs: dict[int, int] = {}
        self._owners: dict[int, str] = {}
        self._disclaimed: dict[int, int] = {}
        """By job id: the highest claim that a node was told is not here. The oldest are forgotten first."""

    def accepts_epoch(self, shard: int, epoch: int, node: str) -> bool:
        """Note an epoch of a shard; return False if a higher one has been seen, so the node owns the shard no more."""
        known = self._epochs.get(shard, -1)
        if epoch < known:
            return False
        if epoch > known or self._owners.get(shard) != node:
            self._epochs[shard] = epoch
            self._owners[shard] = node
        return True

    def disclaimed(self, job_id: int, claim: int) -> bool:
        """Return whether a node was told that the attempt is not here: then it must not be run any more."""
        return claim <= self._disclaimed.get(job_id, 0)

    def holds(self, job_id: int, claim: int) -> bool:
        """Return whether the attempt runs or its result is kept."""
        attempt = self.running.get(job_id)
        return (attempt is not None and attempt.claim == claim) or (job_id, claim) in self.finished

    def add(self, attempt: Attempt) -> None:
        """Enter an attempt. The job must have no other running one."""
        self.running[attempt.job_id] = attempt
        self.used[attempt.stream, attempt.definition.name] += 1

    def remove(self, attempt: Attempt) -> bool:
        """Take out an attempt that has ended; return False if it was not the worker's any more."""
        if self.running.get(attempt.job_id) is attempt:
            del self.running[attempt.job_id]
            self._free(attempt)
            return True
        self.lingering.discard(attempt)
        return False

    def disown(self, attempt: Attempt) -> None:
        """Note that an attempt is no longer the worker's: its handler may still run, its result will be dropped."""
        if self.remove(attempt):
            self.lingering.add(attempt)

    def adopt(self, shards: Iterable[tuple[int, int]], node: str) -> None:
        """Note that a node has become the owner of shards, given with their epochs."""
        taken = {shard for shard, epoch in shards if self.accepts_epoch(shard, epoch, node)}
        for attempt in self.running.values():
            if attempt.shard in taken:
                attempt.node = node

    def keep(self, attempt: Attempt, result: Result) -> Finished:
        """Keep a result until it is acknowledged."""
        finished = Finished(result=result, stream=attempt.stream, owner=attempt.node)
        self.finished[attempt.key] = finished
        return finished

    def give_back(self, job_id: int, claim: int, *, stream: str, node: str) -> None:
        """Keep the result "interrupted" for an attempt that was never entered."""
        result = Result(attempt=_ref(job_id, claim), interrupted=Interrupted())
        self.finished[job_id, claim] = Finished(result=result, stream=stream, owner=node)

    def acknowledged(self, job_id: int, claim: int) -> None:
        """Forget a result."""
        self.finished.pop((job_id, claim), None)

    def _free(self, attempt: Attempt) -> None:
        key = attempt.stream, attempt.definition.name
        self.used[key] -= 1
        if not self.used[key]:
            # Streams come and go.
            del self.used[key]

    def full_report(self) -> Report:
        """Return everything that the worker holds."""
        return Report(
            running=[_ref(*attempt.key) for attempt in self.running.values()],
            finished=[_ref(*key) for key in self.finished],
        )

    def report_on_shards(self, request_id: int, shards: Iterable[int]) -> Report:
        """Return what the worker holds of some shards."""
        asked = set(shards)
        return Report(
            request_id=request_id,
            running=[_ref(*attempt.key) for attempt in self.running.values() if attempt.shard in asked],
            finished=[_ref(*key) for key in self.finished if key[0] & SHARD_MASK in asked],
            shards=sorted(asked),
        )

    def report_on_attempts(self, request_id: int, attempts: Iterable[AttemptRef]) -> Report:
        """Return which of some attempts the worker holds. The others will be refused, should they still come: they may
        be under way on the stream of another node, and whoever asked gives them to another worker."""
        report = Report(request_id=request_id)
        for asked in attempts:
            attempt = self.running.get(asked.job_id)
            if attempt is not None and attempt.claim == asked.claim:
                report.running.append(asked)
            elif (asked.job_id, asked.claim) in self.finished:
                report.finished.append(asked)
            else:
                self._disclaim(asked.job_id, asked.claim)
        return report

    def _disclaim(self, job_id: int, claim: int) -> None:
        highest = max(claim, self._disclaimed.pop(job_id, 0))
        self._disclaimed[job_id] = highest
        if len(self._disclaimed) > _MAX_DISCLAIMED:
            del self._disclaimed[next(iter(self._disclaimed))]


def _ref(job_id: int, claim: int) -> AttemptRef:
    return AttemptRef(job_id=job_id, claim=claim)
