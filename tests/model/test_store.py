"""The models' picture of the database is right: random sequences of statements do to real rows what `tables` says.

Each step runs a real statement of the store on a real PostgreSQL, and the pure function that stands for it in the
models; answers and rows must be the same. What concurrent statements do to each other is not seen here: that FENCE
waits and is waited for is tested in `tests/integration/store/test_fence.py`.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, ClassVar, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from server.domain.ending import FencedEnds, Recheck
from server.domain.job import AttemptRef, JobState
from server.domain.outcome import Finish, Requeue
from server.store import claim, finish, jobs_control, shards
from server.store.arrays import Int8Array
from tests.integration.store.bench import INCARNATION, NAMESPACE, Bench, bench
from tests.model import tables
from tests.model.tables import Job, Lease, Shard, State
from tests.support.thoroughness import examples

FIRST: Final = Shard(epoch=1, lease=Lease(1, 1), owner=INCARNATION)
OWNERS: Final = (INCARNATION, 12, 13)
JOBS: Final = (
    "SELECT id, state, attempt, claim, open_claim, claim_epoch, worker_id, cancel_requested FROM jobs"
    " WHERE shard = 0"
    " UNION ALL SELECT id, state, attempt, claim, NULL, NULL, NULL, NULL FROM job_history WHERE id = ANY (%s)"
)
SHARD: Final = "SELECT epoch, generation, token, owner_incarnation FROM shards WHERE shard = 0"

# Near enough to the present one to be right quite often: how far a claim or epoch is off.
off_by = st.sampled_from((0, 0, 0, 0, 0, 0, -1, 1))
outcomes = st.sampled_from((State.COMPLETED, State.FAILED, State.CANCELLED))


class RealStore(RuleBasedStateMachine):
    """Shard 0 and its jobs, in the database and in the models."""

    jobs: Bundle[int] = Bundle("jobs")

    runner: ClassVar[asyncio.Runner]
    store: ClassVar[Bench]

    def __init__(self) -> None:
        super().__init__()
        self.shard = FIRST
        self.rows: dict[int, Job] = {}
        self.silent: set[int] = set()
        self.overtime: set[AttemptRef] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for work on the database."""
        return self.runner.run(work)

    @initialize(target=jobs)
    def begin(self) -> Any:
        """As after `bench`, with some jobs, of which two run."""
        for statement in (
            "DELETE FROM jobs WHERE shard = 0",
            "UPDATE workers SET lease_until = now() + interval '1 hour', ended_at = NULL",
        ):
            self.run(self.store.sql(statement))
        self.run(
            self.store.sql(
                "UPDATE shards SET epoch = %s, generation = %s, token = %s, owner_incarnation = %s WHERE shard = 0",
                FIRST.epoch, *FIRST.lease, FIRST.owner,
            )
        )  # fmt: skip
        ids = self.run(self.store.submit(3))
        self.rows |= dict.fromkeys(ids, Job())
        self.claim_some(2, FIRST.epoch, self.store.worker)
        return multiple(*ids)

    # The shard.

    @rule(generation=st.integers(1, 3), token=st.integers(1, 4), owner=st.sampled_from(OWNERS))
    def fence_in(self, generation: int, token: int, owner: int) -> None:
        lease = Lease(generation, token)
        answer = self.run(shards.fence_in(self.store.database, [(0, *lease)], f"node-{owner}", owner))
        self.shard = tables.fence_in(self.shard, lease, owner) or self.shard
        epoch = tables.read_back(self.shard, lease, owner)
        assert answer == ({0: epoch} if epoch else {})

    @rule(off=off_by, owner=st.sampled_from(OWNERS))
    def bump(self, off: int, owner: int) -> None:
        epoch = self.shard.epoch + off
        answer = self.run(shards.bump(self.store.database, 0, epoch, owner))
        after = tables.bump(self.shard, epoch, owner)
        assert answer == (after.epoch if after else None)
        self.shard = after or self.shard

    # Jobs, and their users.

    @rule(target=jobs, count=st.integers(1, 2))
    def submit(self, count: int) -> Any:
        ids = self.run(self.store.submit(count))
        self.rows |= dict.fromkeys(ids, Job())
        return multiple(*ids)

    @rule(job_id=jobs)
    def cancel(self, job_id: int) -> None:
        answer = self.run(jobs_control.cancel(self.store.database, 0, NAMESPACE, job_id, ""))
        before = self.rows[job_id]
        after = tables.cancel(before)
        if after is None:
            assert answer == JobState(before.state)
        else:
            assert isinstance(answer, jobs_control.Cancelled)
            self.rows[job_id] = after

    @rule(job_id=jobs)
    def revive(self, job_id: int) -> None:
        self.run(jobs_control.retry(self.store.database, 0, NAMESPACE, job_id))
        self.rows[job_id] = tables.revive(self.rows[job_id]) or self.rows[job_id]

    # Workers.

    @rule(second=st.booleans(), ended=st.booleans())
    def fall_silent(self, second: bool, ended: bool) -> None:
        worker = self._worker(second)
        change = "ended_at = now()" if ended else "lease_until = now() - interval '1 second'"
        self.run(self.store.sql(f"UPDATE workers SET {change} WHERE id = %s", worker))
        self.silent.add(worker)

    @rule(second=st.booleans())
    def be_heard(self, second: bool) -> None:
        worker = self._worker(second)
        change = "lease_until = now() + interval '1 hour', ended_at = NULL"
        self.run(self.store.sql(f"UPDATE workers SET {change} WHERE id = %s", worker))
        self.silent.discard(worker)

    @rule(job_id=jobs)
    def run_over_time(self, job_id: int) -> None:
        job = self.rows[job_id]
        if job.state is State.RUNNING:
            self.run(self.store.sql("UPDATE jobs SET timeout_at = now() - interval '1 min' WHERE id = %s", job_id))
            self.overtime.add(AttemptRef(job_id, job.open_claim))

    @rule(slots=st.integers(1, 3), off=off_by, second=st.booleans())
    def claim(self, slots: int, off: int, second: bool) -> None:
        self.claim_some(slots, self.shard.epoch + off, self._worker(second))

    def claim_some(self, slots: int, epoch: int, worker: int) -> None:
        """Claim, and compare."""
        pending = [job_id for job_id, job in self.rows.items() if job.state is State.PENDING]
        probe = self.store.probe(slots, workers=[worker] * slots)
        answer = self.run(claim.claim(self.store.database, 0, [(0, epoch)], [probe]))
        if not tables.passes(self.shard, epoch):
            assert (answer.jobs, answer.live_shards) == ([], frozenset())
            return
        assert answer.live_shards == {0}
        assert len(answer.jobs) == min(slots, len(pending))
        for got in answer.jobs:
            after = tables.claim(self.rows[got.job_id], epoch, worker)
            assert after is not None
            assert (got.claim, got.attempt, got.epoch) == (after.open_claim, after.attempt, after.claim_epoch)
            self.rows[got.job_id] = after

    # Ends.

    @rule(job_id=jobs, off=off_by, state=outcomes)
    def finish(self, job_id: int, off: int, state: State) -> None:
        ref = self._ref(job_id, off)
        ended = self.run(finish.finish(self.store.database, 0, [_final(ref, state)]))
        self._ended(ref, [one.ref for one in ended], tables.finish(self.rows[job_id], ref.claim, state))

    @rule(job_id=jobs, off=off_by, burn=st.booleans(), keep_open=st.booleans())
    def requeue(self, job_id: int, off: int, burn: bool, keep_open: bool) -> None:
        ref = self._ref(job_id, off)
        back = Requeue(ref=ref, delay=None, burn=burn, keep_open=keep_open)
        ended = self.run(finish.requeue(self.store.database, 0, [back]))
        after = tables.requeue(self.rows[job_id], ref.claim, burn=burn, keep_open=keep_open)
        self._ended(ref, [one.ref for one in ended], after)

    @rule(job_id=jobs, off=off_by, off_epoch=off_by, recheck=st.sampled_from(Recheck), state=outcomes)
    def fenced_finish(self, job_id: int, off: int, off_epoch: int, recheck: Recheck, state: State) -> None:
        ref, epoch = self._ref(job_id, off), self.shard.epoch + off_epoch
        order = [_final(ref, state)]
        ends = self.run(finish.fenced_finish(self.store.database, 0, [(0, epoch)], order, recheck))
        acts = self._acts(ref, epoch, recheck)
        self._fenced(ref, epoch, ends, tables.finish(self.rows[job_id], ref.claim, state) if acts else None)

    @rule(
        job_id=jobs, off=off_by, off_epoch=off_by, recheck=st.sampled_from(Recheck), burn=st.booleans(),
        keep_open=st.booleans(),
    )  # fmt: skip
    def fenced_requeue(
        self, job_id: int, off: int, off_epoch: int, recheck: Recheck, burn: bool, keep_open: bool
    ) -> None:
        ref, epoch = self._ref(job_id, off), self.shard.epoch + off_epoch
        order = [Requeue(ref=ref, delay=timedelta(0), burn=burn, keep_open=keep_open)]
        ends = self.run(finish.fenced_requeue(self.store.database, 0, [(0, epoch)], order, recheck))
        after = tables.requeue(self.rows[job_id], ref.claim, burn=burn, keep_open=keep_open)
        self._fenced(ref, epoch, ends, after if self._acts(ref, epoch, recheck) else None)

    # What must be the same after every step.

    @invariant()
    def the_rows_are_the_same(self) -> None:
        assert self.run(self._read()) == (self.shard, {key: _visible(job) for key, job in self.rows.items()})

    @invariant()
    def the_same_attempts_are_open(self) -> None:
        refs = [AttemptRef(key, number) for key, job in self.rows.items() for number in range(1, job.claim + 1)]
        _, facts = self.run(finish.load_facts(self.store.database, 0, refs))
        assert set(facts) == {ref for ref in refs if tables.is_open(self.rows[ref.job_id], ref.claim)}
        there = self.run(finish.still_there(self.store.database, 0, list(self.rows)))
        assert set(there) == {key for key, job in self.rows.items() if not job.is_final}

    def _worker(self, second: bool) -> int:
        return self.store.second_worker if second else self.store.worker

    def _ref(self, job_id: int, off: int) -> AttemptRef:
        return AttemptRef(job_id, self.rows[job_id].claim + off)

    def _acts(self, ref: AttemptRef, epoch: int, recheck: Recheck) -> bool:
        job = self.rows[ref.job_id]
        if not tables.passes(self.shard, epoch):
            return False
        if recheck is Recheck.OPEN:
            return tables.is_running(job, ref.claim)
        if recheck is Recheck.WORKER_LOST:
            return tables.is_lost(job, ref.claim, lease_over=job.worker in self.silent)
        if recheck is Recheck.NOT_STARTED:
            # That is for published jobs, and all of these are handed to workers.
            return False
        return tables.is_overdue(job, ref.claim, grace_over=ref in self.overtime)

    def _fenced(self, ref: AttemptRef, epoch: int, ends: FencedEnds, after: Job | None) -> None:
        assert ends.live_shards == ({0} if tables.passes(self.shard, epoch) else frozenset())
        self._ended(ref, [one.ref for one in ends.ended], after)

    def _ended(self, ref: AttemptRef, ended: list[AttemptRef], after: Job | None) -> None:
        assert ended == ([ref] if after is not None else [])
        if after is not None:
            self.rows[ref.job_id] = after

    async def _read(self) -> tuple[Shard, dict[int, Job]]:
        [(epoch, generation, token, owner)] = await self.store.sql(SHARD)
        rows = await self.store.sql(JOBS, Int8Array(list(self.rows)))
        jobs = {
            key: Job(State(state), attempt, number, open_claim or 0, claim_epoch or 0, worker or 0, bool(cancelled))
            for key, state, attempt, number, open_claim, claim_epoch, worker, cancelled in rows
        }
        return Shard(epoch, Lease(generation, token), owner), jobs


def _final(ref: AttemptRef, state: State) -> Finish:
    return Finish(ref=ref, state=JobState(state))


def _visible(job: Job) -> Job:
    """What can be compared of a job: in the history, nothing is left of who ran it."""
    if not job.is_final:
        return job
    return job._replace(open_claim=0, claim_epoch=0, worker=0, cancel_requested=False)


def test_real_statements_do_what_the_models_say(database: str) -> None:
    with asyncio.Runner() as opened_runner:
        opened = bench(database)
        opened_store = opened_runner.run(opened.__aenter__())

        class OnDatabase(RealStore):
            runner = opened_runner
            store = opened_store

        try:
            run_state_machine_as_test(
                OnDatabase,
                settings=settings(
                    max_examples=examples(75),
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            opened_runner.run(opened.__aexit__(None, None, None))
