"""The sending half of a worker's session.

The engine queues messages without waiting; one writer per stream writes them in order. Jobs that were queued and whose
write was never begun are surely undelivered and go back at once; a batch whose write failed may have arrived, so it is
left to the worker's next report. A worker that does not read what it is sent gets no more jobs: `on_full` tells so.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from server.api import session_convert as convert
from server.api.convert import duration
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import AckStatus
from shardwheel.v1 import worker_service_pb2 as pb

# Messages that may wait for a slow worker before its stream is cut.
MAX_QUEUED: Final = 10_000
# Jobs of so many bytes may wait for it: the credit of a worker that does not read must not fill the node's memory.
MAX_QUEUED_BYTES: Final = 8 << 20
JOB_BYTES: Final = 500


class StreamLink:
    """Implements `server.engine.ports.WorkerLink` over a gRPC stream."""

    def __init__(
        self, handler_names: Callable[[int], str], undelivered: Callable[[Sequence[AttemptRef]], None]
    ) -> None:
        self._handler_names = handler_names
        self._undelivered = undelivered
        self._queue: deque[pb.SessionResponse | list[ClaimedJob]] = deque()
        self._wake = asyncio.Event()
        self._queued_bytes = 0
        self._full = False
        self._closed = False
        self.on_full: Callable[[bool], None] = lambda full: None
        """Told when so much waits that no more jobs should come, and when there is room again."""

    @property
    def closed(self) -> bool:
        """Whether nothing more will be written."""
        return self._closed

    def send(self, message: pb.SessionResponse) -> None:
        """Queue a message; dropped if the session is over."""
        if self._closed:
            return
        if len(self._queue) >= MAX_QUEUED:
            self.close()
            return
        self._queue.append(message)
        self._wake.set()

    def send_jobs(self, jobs: Sequence[ClaimedJob]) -> bool:
        """See `WorkerLink`."""
        if self._closed:
            return False
        self._queue.append(list(jobs))
        self._queued_bytes += _size(jobs)
        if not self._full and self._queued_bytes >= MAX_QUEUED_BYTES:
            self._full = True
            self.on_full(True)
        self._wake.set()
        return True

    def send_acks(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """See `WorkerLink`."""
        self.send(pb.SessionResponse(result_acks=convert.result_acks(acks)))

    def send_cancels(self, cancels: Sequence[tuple[AttemptRef, str]]) -> None:
        """See `WorkerLink`."""
        self.send(pb.SessionResponse(cancels=convert.cancels(cancels)))

    def send_owner_hello(self, request_id: int, epochs: Sequence[tuple[int, int]]) -> None:
        """See `WorkerLink`."""
        shards = [pb.ShardEpoch(shard=shard, epoch=epoch) for shard, epoch in epochs]
        self.send(pb.SessionResponse(owner_hello=pb.OwnerHello(request_id=request_id, shards=shards)))

    def send_audit(self, request_id: int, refs: Sequence[AttemptRef]) -> None:
        """See `WorkerLink`."""
        attempts = [convert.attempt_ref(ref) for ref in refs]
        self.send(pb.SessionResponse(audit=pb.Audit(request_id=request_id, attempts=attempts)))

    def send_demand(self, waiting: Sequence[tuple[int, int]]) -> None:
        """See `WorkerLink`."""
        demands = [pb.HandlerDemand(handler=self._handler_names(one), waiting=count) for one, count in waiting]
        self.send(pb.SessionResponse(demand=pb.Demand(demands=demands)))

    def send_credit_ack(self, sequence: int) -> None:
        """See `WorkerLink`."""
        self.send(pb.SessionResponse(credit_ack=pb.CreditAck(sequence=sequence)))

    def send_drain(self, grace: timedelta) -> None:
        """See `WorkerLink`."""
        self.send(pb.SessionResponse(drain=pb.Drain(grace=duration(grace))))

    def close(self) -> None:
        """See `WorkerLink`."""
        if self._closed:
            return
        self._closed = True
        lost = [job.ref for item in self._queue if isinstance(item, list) for job in item]
        self._queue.clear()
        self._wake.set()
        if lost:
            self._undelivered(lost)

    async def next_message(self) -> pb.SessionResponse | None:
        """Return the next message to write; None once the session is over."""
        while not self._queue:
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        item = self._queue.popleft()
        if isinstance(item, list):
            self._queued_bytes -= _size(item)
            if self._full and self._queued_bytes <= MAX_QUEUED_BYTES // 2:
                self._full = False
                self.on_full(False)
            return pb.SessionResponse(jobs=convert.job_batch(item, self._handler_names))
        return item


def _size(jobs: Sequence[ClaimedJob]) -> int:
    return sum(len(job.payload) + JOB_BYTES for job in jobs)
