"""A claim whose answer is lost: nothing is handed out twice, nothing is left running that nobody runs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from server.domain.due import ClaimResult, Probe
from server.domain.job import ClaimedJob
from server.domain.outcome import AckStatus
from server.engine.ports import Epochs, OutcomeUnknown
from server.store import arrays, claim
from server.store.database import Database
from server.store.engine_store import PostgresEngineStore
from tests.integration.store.bench import Bench
from tests.integration.store.engine_bench import ScriptedWorker, connect, engine_on, serve
from tests.integration.store.plans import sent_by_awaited
from tests.support.waiting import eventually


class LosingStore(PostgresEngineStore):
    """Loses the answer of the first claim in one of three ways."""

    def __init__(self, store: Bench, way: str) -> None:
        super().__init__(store.database, node="node-1", incarnation=77)
        self._bench = store
        self._way = way
        self.lost = False
        self.taken: set[int] = set()
        """Jobs that the lost claim has bound to the worker."""
        self.late: asyncio.Task[None] | None = None

    async def claim(self, partition: int, epochs: Epochs, probes: Sequence[Probe], *, look_past: int) -> ClaimResult:
        if self.lost:
            return await super().claim(partition, epochs, probes, look_past=look_past)
        self.lost = True
        match self._way:
            case "committed":
                result = await super().claim(partition, epochs, probes, look_past=look_past)
                self.taken = {job.job_id for job in result.jobs}
            case "still running":
                await self._run_on(partition, epochs, probes)
            case _:
                pass
        raise OutcomeUnknown("the connection broke")

    async def _run_on(self, partition: int, epochs: Epochs, probes: Sequence[Probe]) -> None:
        """Run the statement on a connection that nobody knows of any more, and commit it only later."""

        async def call(database: Database) -> object:
            return await claim.claim(database, partition, epochs, probes)

        sent = await sent_by_awaited(call)
        connection = await self._bench.connect()
        arrays.register(connection)
        await connection.execute(sent.query.encode(), sent.params)
        rows = await (await connection.execute("SELECT id FROM jobs_0000 WHERE claim = 1")).fetchall()
        self.taken = {job_id for (job_id,) in rows}

        async def commit() -> None:
            await eventually(self._bench.waiting_for_locks, what="the node waits for the statement")
            await connection.commit()
            await connection.close()

        self.late = asyncio.create_task(commit())


@pytest.mark.parametrize("way", ["not committed", "committed", "still running"])
async def test_claim_of_unknown_outcome_is_settled(store: Bench, way: str) -> None:
    """The node raises its own epoch, which waits for a statement that still runs, and reads back what it has taken."""
    ids = await store.submit(3)
    losing = LosingStore(store, way)
    async with engine_on(store, engine_store=losing) as engine:

        def end_soon(worker: ScriptedWorker, job: ClaimedJob) -> None:
            asyncio.get_running_loop().call_soon(worker.complete, job.ref)

        worker = await connect(engine, "w", {store.handler: 3})
        worker.on_job = end_soon
        await serve(engine, [0])
        epoch = engine.ownership.epochs[0]
        await eventually(lambda: len(worker.acks) == 3, what="all jobs are through")
        assert engine.ownership.epochs[0] == epoch + 1
        assert len(engine.registry) == 0
        assert engine.slots.free(store.handler) == 3
    assert sorted(job.job_id for job in worker.got) == ids
    assert bool(losing.taken) == (way != "not committed")
    # What it had taken was never delivered: that claim is over, and no try is burned.
    assert {job.job_id for job in worker.got if job.claim == 2} == losing.taken
    assert {job.attempt for job in worker.got} == {1}
    assert {status for _, status in worker.acks} == {AckStatus.ACCEPTED}
    rows: list[Any] = await store.sql("SELECT id, attempt FROM job_history WHERE state = 3 ORDER BY id")
    assert rows == [(job_id, 1) for job_id in ids]
    assert await store.sql("SELECT count(*) FROM attempts") == [(0,)]
