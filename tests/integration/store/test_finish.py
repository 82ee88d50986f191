"""Ends of attempts: into the history, or back to pending, exactly once each."""

import asyncio
import random
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from server.domain.ending import ANY_LEASE, NO_LEASE, Recheck
from server.domain.job import AttemptOutcome, AttemptRef, Backoff, JobState, TimeLimits
from server.domain.outcome import AttemptFacts, Finish, Requeue, WorkerLost, decide
from server.store import finish, jobs_control, reap, workers
from tests.integration.store.bench import EPOCH, NAMESPACE, Bench, bench
from tests.support.postgres import PostgresServer

HOUR = timedelta(hours=1)
EPOCHS = [(0, EPOCH)]


def completed(ref: AttemptRef) -> Finish:
    return Finish(ref=ref, state=JobState.COMPLETED, result=b"r", content_type="application/json")


def failed(ref: AttemptRef, **changes: Any) -> Finish:
    values: dict[str, Any] = {"error_type": "E", "message": "m", "outcome": AttemptOutcome.FAILED} | changes
    return Finish(ref=ref, state=JobState.FAILED, **values)


def retry(ref: AttemptRef, **changes: Any) -> Requeue:
    outcome = AttemptOutcome.FAILED
    values: dict[str, Any] = {
        "delay": HOUR,
        "burn": True,
        "error_type": "E",
        "message": "m",
        "outcome": outcome,
    } | changes
    return Requeue(ref=ref, **values)


async def end(store: Bench, *finishes: Finish) -> list[int]:
    return [one.ref.job_id for one in await finish.finish(store.database, 0, finishes)]


async def give_back(store: Bench, *requeues: Requeue) -> list[int]:
    return [one.ref.job_id for one in await finish.requeue(store.database, 0, requeues)]


async def test_completed_job_moves_to_the_history(store: Bench) -> None:
    job = await store.start(concurrency_key="k", priority=2)
    before = await store.row(job.job_id)
    [one] = await finish.finish(store.database, 0, [completed(job.ref)])
    assert (one.ref, one.shard, one.handler_id, one.worker_id) == (job.ref, 0, store.handler, store.worker)
    assert (one.state, one.concurrency_key, one.namespace_id) == (JobState.COMPLETED, "k", NAMESPACE)
    assert (one.priority, one.due_at, one.schedule_id) == (2, job.due_at, None)
    after = await store.history(job.job_id)
    assert await store.row(job.job_id) is None
    assert (after.state, after.result, after.result_content_type) == (3, b"r", "application/json")
    assert (after.error_type, after.error_message) == (None, None)
    assert after.finished_at >= before.started_at
    assert await store.attempts(job.job_id) == []


async def fill_every_column(store: Bench) -> Any:
    """Start a job that has a value in every column that the history keeps."""
    job = await store.start(
        name="n", content_type="c", labels=b'{"a": 1}', traceparent="t", priority=2, concurrency_key="k",
        concurrency_limit=3, backoff=Backoff(non_retryable=("A", "B")),
        limits=TimeLimits(start=HOUR, attempt=HOUR, total=2 * HOUR), schedule_id=77, scheduled_for=await store.now(),
    )  # fmt: skip
    await reap.save_progress(store.database, 0, job.worker_id, [(job.ref, b"half")])
    return job


async def check_every_column(store: Bench, before: Any) -> Any:
    after = await store.history(before.id)
    shared = (set(before._fields) & set(after._fields)) - {"state", "error_type", "error_message"}
    kept = set(after._fields) - {"state", "error_type", "error_message"} - shared
    assert kept == {"finished_at", "result", "result_content_type"}
    assert {name: getattr(after, name) for name in shared} == {name: getattr(before, name) for name in shared}
    assert not [name for name in shared if getattr(before, name) is None]
    return after


async def test_every_column_goes_along_with_a_finish(store: Bench) -> None:
    job = await fill_every_column(store)
    before = await store.row(job.job_id)
    await end(store, completed(job.ref))
    await check_every_column(store, before)


async def test_every_column_goes_along_with_an_expiry(store: Bench) -> None:
    job = await fill_every_column(store)
    await give_back(store, retry(job.ref))
    await store.sql("UPDATE jobs SET expires_at = now(), worker_id = 9 WHERE id = %s", job.job_id)
    before = await store.row(job.job_id)
    assert (await reap.expire(store.database, 0, EPOCHS))[0] == [job.job_id]
    await check_every_column(store, before)


async def test_every_column_goes_along_with_a_completion_in_a_transaction_of_the_user(store: Bench) -> None:
    job = await fill_every_column(store)
    before = await store.row(job.job_id)
    await store.sql("SELECT shardwheel.complete_attempt(%s, %s, 'r', 'c')", job.job_id, job.claim)
    after = await check_every_column(store, before)
    assert (after.state, after.result, after.result_content_type) == (3, b"r", "c")


async def test_failed_job_is_kept_with_its_error_and_its_attempt(store: Bench) -> None:
    job = await store.start()
    assert await end(store, failed(job.ref)) == [job.job_id]
    after = await store.history(job.job_id)
    assert (after.state, after.error_type, after.error_message, after.result) == (4, "E", "m", None)
    [noted] = await store.attempts(job.job_id)
    assert (noted.claim, noted.attempt, noted.worker_id, noted.started_at) == (1, 1, store.worker, job.started_at)
    assert (noted.outcome, noted.error_type, noted.error_message) == (1, "E", "m")
    assert noted.ended_at == after.finished_at


async def test_finish_of_another_claim_does_nothing(store: Bench) -> None:
    job = await store.start()
    for claim in (0, 2):
        assert await end(store, completed(AttemptRef(job.job_id, claim))) == []
        assert await give_back(store, retry(AttemptRef(job.job_id, claim))) == []
    assert (await store.row(job.job_id)).state == JobState.RUNNING
    # The row is there: the result was stale. Once it has left, it was a duplicate.
    assert await finish.still_there(store.database, 0, [job.job_id, job.job_id + 4096]) == {job.job_id: 1}
    await end(store, completed(job.ref))
    assert await end(store, completed(job.ref)) == []
    assert await finish.still_there(store.database, 0, [job.job_id]) == {}


async def test_a_batch_ends_what_is_open_and_leaves_the_rest(store: Bench) -> None:
    refs = await store.start_many(4)
    await end(store, completed(refs[1]))
    batch = [completed(refs[0]), completed(refs[1]), failed(refs[2]), completed(AttemptRef(refs[3].job_id, 9))]
    assert sorted(await end(store, *batch)) == [refs[0].job_id, refs[2].job_id]
    assert (await store.row(refs[3].job_id)).state == JobState.RUNNING


async def test_retry_burns_a_try_and_waits(store: Bench) -> None:
    job = await store.start()
    [one] = await finish.requeue(store.database, 0, [retry(job.ref)])
    row = await store.row(job.job_id)
    now = await store.now()
    assert (row.state, row.attempt, row.claim, row.open_claim) == (0, 1, 1, None)
    assert (row.worker_id, row.timeout_at, row.error_type, row.error_message) == (None, None, "E", "m")
    assert timedelta(0) <= now + HOUR - row.due_at < timedelta(seconds=5)
    assert (one.state, one.due_at, one.worker_id) == (JobState.PENDING, row.due_at, None)
    [noted] = await store.attempts(job.job_id)
    assert (noted.worker_id, noted.claim, noted.attempt) == (store.worker, 1, 1)


async def test_a_failure_that_is_sent_again_counts_once(store: Bench) -> None:
    job = await store.start()
    assert await give_back(store, retry(job.ref, delay=timedelta(0))) == [job.job_id]
    assert await give_back(store, retry(job.ref, delay=timedelta(0))) == []
    [again] = (await store.claim()).jobs
    assert again.attempt == 2
    assert await give_back(store, retry(job.ref)) == []
    assert len(await store.attempts(job.job_id)) == 1


async def test_snooze_burns_no_try_and_leaves_no_attempt(store: Bench) -> None:
    job = await store.start(limits=TimeLimits(start=HOUR, total=48 * HOUR))
    await give_back(store, Requeue(ref=job.ref, delay=timedelta(days=2), burn=False))
    row = await store.row(job.job_id)
    assert (row.attempt, row.claim, row.error_type) == (0, 1, None)
    assert row.due_at > job.due_at + 47 * HOUR
    # It has started in time; what remains is the total time.
    assert row.expires_at == row.deadline_at
    assert await store.attempts(job.job_id) == []


async def test_undelivered_attempt_is_as_if_it_had_never_been(store: Bench) -> None:
    job = await store.start(limits=TimeLimits(start=HOUR, attempt=HOUR))
    before = await store.row(job.job_id)
    await give_back(store, Requeue(ref=job.ref, delay=None, burn=False, started=False))
    row = await store.row(job.job_id)
    assert (row.due_at, row.attempt, row.expires_at) == (before.due_at, 0, before.due_at + HOUR)
    # A second one of these, after a real try, does not make the start timeout count again.
    await give_back(store, retry((await store.claim()).jobs[0].ref, delay=timedelta(0)))
    [third] = (await store.claim()).jobs
    assert third.attempt == 2
    await give_back(store, Requeue(ref=third.ref, delay=None, burn=False, started=False))
    assert ((await store.row(job.job_id)).expires_at, (await store.row(job.job_id)).attempt) == (None, 1)


async def test_interrupted_attempt_has_started_in_time(store: Bench) -> None:
    """However long it ran before its worker shut down, the start timeout does not end the job now."""
    job = await store.start(limits=TimeLimits(start=HOUR, total=48 * HOUR))
    await store.sql("UPDATE jobs SET due_at = due_at - interval '2 hours' WHERE id = %s", job.job_id)
    await give_back(store, Requeue(ref=job.ref, delay=None, burn=False))
    row = await store.row(job.job_id)
    assert (row.attempt, row.expires_at) == (0, row.deadline_at)
    assert [one.job_id for one in (await store.claim()).jobs] == [job.job_id]


async def test_tries_given_back_never_fall_below_zero(store: Bench) -> None:
    job = await store.start()
    await store.sql("UPDATE jobs SET attempt = 0 WHERE id = %s", job.job_id)
    await give_back(store, Requeue(ref=job.ref, delay=None, burn=False))
    assert (await store.row(job.job_id)).attempt == 0


def lost(ref: AttemptRef) -> Requeue:
    facts = AttemptFacts(
        ref=ref, handler_id=1, attempt=1, backoff=Backoff(), deadline_at=None, cancel_requested=False
    )  # fmt: skip
    decision = decide(WorkerLost(), facts, FAR, lambda: 0.5)
    assert isinstance(decision, Requeue)
    return decision


FAR = datetime(2030, 1, 1, tzinfo=UTC)


async def test_late_result_of_a_lost_worker_is_accepted_until_the_next_claim(store: Bench) -> None:
    first, second = await store.start_many(2)
    assert sorted(await give_back(store, lost(first), lost(second))) == [first.job_id, second.job_id]
    row = await store.row(first.job_id)
    assert (row.state, row.open_claim, row.worker_id, row.attempt) == (0, 1, store.worker, 1)
    assert await end(store, completed(first)) == [first.job_id]
    assert (await store.history(first.job_id)).worker_id == store.worker
    assert (await store.claim_ids()) == [second.job_id]
    assert await end(store, completed(second)) == []
    assert (await store.row(second.job_id)).open_claim == 2
    [noted] = await store.attempts(second.job_id)
    assert (noted.outcome, noted.worker_id, noted.claim) == (AttemptOutcome.WORKER_LOST, store.worker, 1)


async def test_late_failure_of_a_lost_worker_counts_no_second_try(store: Bench) -> None:
    job = await store.start()
    await give_back(store, lost(job.ref))
    assert await give_back(store, retry(job.ref)) == [job.job_id]
    row = await store.row(job.job_id)
    assert (row.attempt, row.open_claim, row.error_type) == (1, None, "E")


async def test_a_cancel_between_a_failure_and_its_retry_is_not_lost(store: Bench) -> None:
    """The completer decides on what it has read; a cancel that was answered in between has to win."""
    job = await store.start()
    now, facts = await finish.load_facts(store.database, 0, [job.ref])
    assert now is not None
    assert not facts[job.ref].cancel_requested
    cancelled = await jobs_control.cancel(store.database, 0, NAMESPACE, job.job_id, "enough")
    assert isinstance(cancelled, jobs_control.Cancelled)
    assert cancelled.running == (job.ref, store.worker)
    assert await give_back(store, retry(job.ref)) == []
    assert await give_back(store, Requeue(ref=job.ref, delay=None, burn=False)) == []
    ends = await finish.fenced_requeue(store.database, 0, EPOCHS, [retry(job.ref)], Recheck.OPEN)
    assert not ends.ended
    assert ends.live_shards == {0}
    # Decided anew, it is cancelled, with the user's words.
    _, facts = await finish.load_facts(store.database, 0, [job.ref])
    assert facts[job.ref].cancel_requested
    gone = Finish(ref=job.ref, state=JobState.CANCELLED, error_type="cancelled", message="default",
                  outcome=AttemptOutcome.CANCELLED)  # fmt: skip
    assert await end(store, gone) == [job.job_id]
    assert (await store.history(job.job_id)).error_message == "enough"


async def test_facts_are_those_of_open_attempts(store: Bench) -> None:
    backoff = Backoff(max_attempts=9, initial=timedelta(milliseconds=1500), multiplier=1.5,
                      maximum=timedelta(days=3), non_retryable=("A", "B b"))  # fmt: skip
    job = await store.start(backoff=backoff, limits=TimeLimits(total=HOUR))
    asked = [job.ref, AttemptRef(job.job_id, 2), AttemptRef(job.job_id + 4096, 1)]
    now, facts = await finish.load_facts(store.database, 0, asked)
    assert now is not None
    assert facts == {
        job.ref: AttemptFacts(ref=job.ref, handler_id=store.handler, attempt=1, backoff=backoff,
                              deadline_at=job.due_at + HOUR, cancel_requested=False)
    }  # fmt: skip
    assert await finish.load_facts(store.database, 0, asked[1:]) == (None, {})


async def test_recheck_lets_a_worker_live_that_came_back(store: Bench) -> None:
    silent = await store.worker_named("silent", timedelta(0))
    await store.submit(2)
    refs = [job.ref for job in (await store.claim(store.probe(workers=[silent, silent]))).jobs]
    await workers.renew(store.database, {silent: timedelta(0)}, HOUR, HOUR)
    for act in both(store, refs, Recheck.WORKER_LOST):
        ends = await act
        assert not ends.ended
        assert ends.live_shards == {0}
    await workers.end(store.database, [silent], "goodbye")
    ended = [one.ref for act in both(store, refs, Recheck.WORKER_LOST) for one in (await act).ended]
    assert ended == refs


async def test_recheck_takes_a_lost_worker_for_dead_whatever_its_lease(store: Bench) -> None:
    refs = await store.start_many(2)
    await workers.doubt(store.database, [store.worker])
    for act in both(store, refs, Recheck.WORKER_LOST, as_of=NO_LEASE):
        assert not (await act).ended
    await workers.lose(store.database, [store.worker], timedelta(0))
    await store.sql("UPDATE workers SET lease_until = now() + interval '1 h'")
    ended = [one.ref for act in both(store, refs, Recheck.WORKER_LOST, as_of=NO_LEASE) for one in (await act).ended]
    assert ended == refs


async def test_recheck_lets_an_attempt_run_until_its_grace_is_over(store: Bench) -> None:
    refs = await store.start_many(2, limits=TimeLimits(attempt=timedelta(milliseconds=1)))
    for act in both(store, refs, Recheck.TIMED_OUT, HOUR):
        assert (await act).ended == []
    await store.sql("UPDATE jobs SET timeout_at = now() - interval '59 min'")
    for act in both(store, refs, Recheck.TIMED_OUT, HOUR):
        assert (await act).ended == []
    await store.sql("UPDATE jobs SET timeout_at = now() - interval '61 min'")
    ended = [one.ref for act in both(store, refs, Recheck.TIMED_OUT, HOUR) for one in (await act).ended]
    assert ended == refs


async def test_recheck_leaves_alone_what_is_not_running_any_more(store: Bench) -> None:
    """A give-back leaves the claim open: the reaper must not take it for a running attempt."""
    refs = await store.start_many(2)
    await give_back(store, *(lost(ref) for ref in refs))
    await workers.end(store.database, [store.worker], "goodbye")
    for recheck in Recheck:
        for act in both(store, refs, recheck):
            assert (await act).ended == []


def both(
    store: Bench,
    refs: list[AttemptRef],
    recheck: Recheck,
    grace: timedelta = timedelta(0),
    as_of: datetime = ANY_LEASE,
) -> list[Awaitable[Any]]:
    """End the first one and give the second one back, fenced."""
    return [
        finish.fenced_finish(store.database, 0, EPOCHS, [failed(refs[0])], recheck, grace, as_of),
        finish.fenced_requeue(store.database, 0, EPOCHS, [retry(refs[1])], recheck, grace, as_of),
    ]


@pytest.mark.parametrize("turns", [100])
async def test_batches_in_any_order_do_not_deadlock(postgres: PostgresServer, database: str, turns: int) -> None:
    """Each round ends, gives back or marks the same forty rows, in an order of its own."""
    seen = postgres.log_file.stat().st_size
    order = random.Random(1)
    async with bench(database, hot_connections=16) as store:
        refs = await store.start_many(40)

        async def act(number: int) -> None:
            mine = order.sample(refs, len(refs))
            match number % 4:
                case 0:
                    await finish.requeue(store.database, 0, [lost(ref) for ref in mine])
                case 1:
                    await reap.save_progress(store.database, 0, store.worker, [(ref, b"%d" % number) for ref in mine])
                case 2:
                    await finish.fenced_requeue(store.database, 0, EPOCHS, [lost(ref) for ref in mine], Recheck.OPEN)
                case _:
                    # Only the last ones meet an open claim that is theirs to end.
                    half = mine[:2] if number > turns - 20 else []
                    await finish.finish(store.database, 0, [completed(ref) for ref in half])

        await asyncio.gather(*(act(number) for number in range(turns)))
        left = await store.sql("SELECT count(*) FROM jobs")
        done = await store.sql("SELECT count(*) FROM job_history")
    assert left[0][0] + done[0][0] == 40
    assert done[0][0] > 0
    assert "deadlock detected" not in postgres.log_file.read_text(errors="replace")[seen:]
