"""Engines of nodes on a real database, with workers that are scripted by the test instead of connected over gRPC."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import AckStatus, Completed, Outcome
from server.engine.engine import Engine
from server.engine.ports import Epochs
from server.engine.slots import WorkerSession
from server.engine.timings import EngineTimings
from server.store.engine_store import PostgresEngineStore
from server.store.insert import IdBlock
from server.store.schedule_firing import FiringStore
from tests.integration.store.bench import NAMESPACE, PARTITION_OF, Bench

#: Short, but in the proportions of the defaults.
TIMINGS: Final = EngineTimings(
    heartbeat=timedelta(seconds=0.3),
    worker_lease=timedelta(seconds=1.0),
    reset_grace=timedelta(seconds=0.3),
    kill_grace=timedelta(seconds=0.3),
    sweep=timedelta(seconds=0.2),
    reap=timedelta(seconds=0.05),
    audit=timedelta(seconds=0.3),
)

_SESSIONS = itertools.count(1)
_INCARNATIONS = itertools.count(100)


@dataclass(eq=False)
class ScriptedWorker:
    """A worker's process and its stream to one node: holds what it was given until the test says how it ends."""

    engine: Engine
    holds: set[AttemptRef] = field(default_factory=set)
    got: list[ClaimedJob] = field(default_factory=list)
    acks: list[tuple[AttemptRef, AckStatus]] = field(default_factory=list)
    cancels: list[tuple[AttemptRef, str]] = field(default_factory=list)
    on_job: Callable[["ScriptedWorker", ClaimedJob], None] | None = None
    session: WorkerSession | None = None
    closed: bool = False

    @property
    def connected(self) -> WorkerSession:
        assert self.session is not None
        return self.session

    def send_jobs(self, jobs: Sequence[ClaimedJob]) -> bool:
        if self.closed:
            return False
        for job in jobs:
            self.holds.add(job.ref)
            self.got.append(job)
            if self.on_job is not None:
                self.on_job(self, job)
        return True

    def send_acks(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        self.acks.extend(acks)

    def send_cancels(self, cancels: Sequence[tuple[AttemptRef, str]]) -> None:
        self.cancels.extend(cancels)

    def send_owner_hello(self, request_id: int, epochs: Epochs) -> None:
        self._report(request_id)

    def send_audit(self, request_id: int, refs: Sequence[AttemptRef]) -> None:
        self._report(request_id)

    def send_demand(self, waiting: Sequence[tuple[int, int]]) -> None:
        pass

    def send_credit_ack(self, sequence: int) -> None:
        pass

    def send_drain(self, grace: timedelta) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def beat(self) -> None:
        """Be heard by the node."""
        self.connected.heard_at = time.monotonic()

    def result(self, ref: AttemptRef, outcome: Outcome) -> None:
        """Report the end of an attempt."""
        self.holds.discard(ref)
        self.engine.results(self.connected, [(ref, outcome)])

    def complete(self, ref: AttemptRef) -> None:
        """Report that the handler has returned."""
        self.result(ref, Completed(b"", ""))

    def ack_of(self, ref: AttemptRef) -> list[AckStatus]:
        """Return the acknowledgements of an attempt, in order."""
        return [status for acked, status in self.acks if acked == ref]

    def _report(self, request_id: int) -> None:
        held = set(self.holds)
        asyncio.get_running_loop().call_soon(self.engine.adoption.reported, self.connected, request_id, held)


@asynccontextmanager
async def engine_on(
    store: Bench,
    *,
    node: str = "node-1",
    timings: EngineTimings = TIMINGS,
    engine_store: PostgresEngineStore | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine; it serves no shards yet."""
    used = engine_store or PostgresEngineStore(store.database, node=node, incarnation=next(_INCARNATIONS))
    engine = Engine(used, FiringStore(store.database, IdBlock(store.database)), PARTITION_OF, timings)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def serve(engine: Engine, shards: Sequence[int], *, token: int = 2) -> None:
    """Let an engine own shards."""
    for shard, epoch in (await engine.shards.fence_in([(shard, 1, token) for shard in shards])).items():
        await engine.shards.start(shard, epoch)


async def connect(
    engine: Engine, name: str, slots: dict[int, int], *, incarnation: int = 1, running: Sequence[AttemptRef] = ()
) -> ScriptedWorker:
    """Connect a worker with so many slots per handler id."""
    worker = ScriptedWorker(engine, holds=set(running))
    worker_id = await engine.liveness.admit(NAMESPACE, name, incarnation, "test", {})
    worker.session = WorkerSession(next(_SESSIONS), worker_id, name, NAMESPACE, worker, slots)
    await engine.attach(worker.session, list(running), [])
    engine.credit(worker.session, 1, slots)
    return worker
