"""One execution of a job inside a worker."""

import asyncio
import threading
import time
from typing import Protocol

from shardwheel.v1 import worker_service_pb2
from worker_sdk.cancel_signal import CancelSignal
from worker_sdk.handler import HandlerDefinition
from worker_sdk.outcomes import CancelReason

SHARD_MASK = 0xFFF
"""The low bits of a job's id are its shard."""

_signal_lock = threading.Lock()


class Origin(Protocol):
    """The worker, or whatever else runs handlers, as its attempts see it."""

    @property
    def namespace(self) -> str:
        """Namespace of the jobs."""
        ...

    @property
    def worker(self) -> str:
        """Name of the worker."""
        ...

    @property
    def max_result_bytes(self) -> int:
        """Results larger than this are refused."""
        ...

    def record_progress(self, attempt: "Attempt", data: bytes) -> None:
        """Keep the attempt's latest progress. Called from any thread."""
        ...


class Attempt:
    """State of one execution, shared by the thread that talks to nodes and the one that runs the handler.

    Each attribute has one writer: the handler's side writes `committed` and `task`, the other side the rest.
    """

    __slots__ = (
        "_signal", "assignment", "cancel_reason", "claim", "committed", "deadline", "definition", "job_id", "node",
        "origin", "stream", "task",
    )  # fmt: skip

    def __init__(
        self, assignment: worker_service_pb2.Assignment, definition: HandlerDefinition, origin: Origin, node: str = "",
        stream: str = "",
    ) -> None:  # fmt: skip
        self.job_id = assignment.job_id
        self.claim = assignment.claim
        self.definition = definition
        self.origin = origin
        self.node = node
        """Node that owns the job's shard, as far as the worker knows."""
        self.stream = stream
        """Stream on which it came; it counts against the credit of that."""
        self.assign(assignment)
        self.cancel_reason: CancelReason | None = None
        self.committed = False
        """The handler has completed the job inside its own database transaction."""
        self.task: asyncio.Task[None] | None = None
        self._signal: CancelSignal | None = None

    def assign(self, assignment: worker_service_pb2.Assignment) -> None:
        """Take in what the attempt is about; its time runs from now on."""
        self.assignment = assignment
        self.deadline: float | None = None
        """Monotonic time at which the attempt is over its time; None without limit."""
        if assignment.HasField("time_left"):
            left = assignment.time_left
            self.deadline = time.monotonic() + left.seconds + left.nanos / 1e9

    @property
    def shard(self) -> int:
        """Shard of the job."""
        return self.job_id & SHARD_MASK

    @property
    def key(self) -> tuple[int, int]:
        """What names the execution: job id and claim."""
        return self.job_id, self.claim

    @property
    def saw_cancel(self) -> bool:
        """Whether the handler was told to stop through its context."""
        return self._signal is not None and self._signal.seen

    def signal(self) -> CancelSignal:
        """Return the flag that tells the handler to stop. It is made when first asked for: most handlers never do."""
        if self._signal is None:
            with _signal_lock:
                if self._signal is None:
                    self._signal = CancelSignal()
            if self.cancel_reason is not None:
                self._signal.set(self.cancel_reason)
        return self._signal

    def tell_to_stop(self, reason: CancelReason) -> None:
        """Set the flag. Only the first reason counts."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        # Set after the reason: a signal made in between finds the reason by itself.
        if self._signal is not None:
            self._signal.set(self.cancel_reason)
