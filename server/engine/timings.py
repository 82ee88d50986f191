"""The engine's times, all in one place."""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Self

from server.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimings:
    """How long things take; the defaults suit production, tests shorten them."""

    heartbeat: timedelta = timedelta(seconds=3)
    """A worker sends a heartbeat this often."""
    worker_lease: timedelta = timedelta(seconds=15)
    """Silence of this length ends a worker's lease."""
    reset_grace: timedelta = timedelta(seconds=5)
    """A worker whose stream was reset may take this long to come back before its attempts are given back."""
    kill_grace: timedelta = timedelta(seconds=10)
    """An attempt that was told to stop may take this long before it is superseded."""
    sweep: timedelta = timedelta(seconds=1)
    """Each owned partition is looked through this often for what no nudge told of."""
    reap: timedelta = timedelta(milliseconds=500)
    """Lost workers and overdue attempts are looked for this often."""
    audit: timedelta = timedelta(seconds=5)
    """Running attempts that this node did not hand over itself are asked for this often."""
    clean: timedelta = timedelta(seconds=30)
    """Dedupe keys past their time are removed this often."""

    def validated(self) -> Self:
        """Return self; raises `InvalidInput` for times that cannot work together."""
        for field in fields(self):
            if getattr(self, field.name) <= timedelta(0):
                raise InvalidInput(field.name, getattr(self, field.name), "has to be longer than 0")
        if self.worker_lease < 3 * self.heartbeat:
            raise InvalidInput("worker_lease", self.worker_lease, "has to be at least three heartbeats")
        if self.reset_grace < self.heartbeat:
            # Within it, the other nodes that hear the worker have to say so.
            raise InvalidInput("reset_grace", self.reset_grace, "has to be at least one heartbeat")
        return self
