"""`shardwheel.complete_attempt`: a handler's own effect and the end of its job, in one transaction or not at all."""

import asyncio
from typing import Any

import psycopg
import pytest

from server.domain.ending import Recheck
from server.domain.job import AttemptOutcome, JobState
from server.domain.outcome import Finish, Requeue
from server.store import finish, reap
from tests.integration.store.bench import EPOCH, Bench
from tests.support.waiting import eventually

COMPLETE = "SELECT shardwheel.complete_attempt(%s, %s, %s, %s)"


async def effects(store: Bench) -> list[str]:
    return [what for (what,) in await store.sql("SELECT what FROM public.effects ORDER BY what")]


@pytest.fixture
async def effective(store: Bench) -> Bench:
    await store.sql("CREATE TABLE public.effects (what text)")
    return store


async def complete(store: Bench, job: Any, what: str, result: bytes = b"r", claim: int | None = None) -> None:
    """What a handler does: its effect first, then the completion; all or nothing."""
    async with await store.connect() as connection, connection.transaction():
        await connection.execute("INSERT INTO public.effects VALUES (%s)", (what,))
        await connection.execute(COMPLETE, (job.job_id, job.claim if claim is None else claim, result, "text/plain"))


async def test_effect_and_completion_are_one(effective: Bench) -> None:
    store = effective
    job = await store.start()
    await complete(store, job, "mail sent")
    assert await effects(store) == ["mail sent"]
    gone = await store.history(job.job_id)
    assert (gone.state, gone.result, gone.result_content_type, gone.claim) == (3, b"r", "text/plain", 1)
    assert await store.row(job.job_id) is None
    # What the worker reports afterwards finds the job gone.
    assert await finish.still_there(store.database, 0, [job.job_id]) == {}


async def test_nothing_is_done_twice(effective: Bench) -> None:
    store = effective
    job = await store.start()
    await complete(store, job, "first")
    with pytest.raises(psycopg.Error, match="no longer open") as caught:
        await complete(store, job, "second")
    assert caught.value.sqlstate == "SW001"
    assert await effects(store) == ["first"]


@pytest.mark.parametrize("claim", [0, 2])
async def test_another_claim_is_refused_and_takes_the_effect_along(effective: Bench, claim: int) -> None:
    store = effective
    job = await store.start()
    with pytest.raises(psycopg.Error) as caught:
        await complete(store, job, "stale", claim=claim)
    assert caught.value.sqlstate == "SW001"
    assert await effects(store) == []
    assert (await store.row(job.job_id)).state == JobState.RUNNING


async def test_an_attempt_that_was_given_back_is_refused(effective: Bench) -> None:
    store = effective
    job = await store.start()
    await finish.requeue(store.database, 0, [Requeue(ref=job.ref, delay=None, burn=False)])
    with pytest.raises(psycopg.Error):
        await complete(store, job, "late")
    assert await effects(store) == []


async def test_late_completion_of_a_lost_worker_is_accepted_until_the_next_claim(effective: Bench) -> None:
    store = effective
    job, other = await store.start(), await store.start()
    lost = AttemptOutcome.WORKER_LOST
    back = [
        Requeue(ref=one.ref, delay=None, burn=True, keep_open=True, error_type="worker_lost", message="m", outcome=lost)
        for one in (job, other)
    ]
    await finish.requeue(store.database, 0, back)
    await complete(store, job, "late but welcome")
    await store.claim()
    with pytest.raises(psycopg.Error):
        await complete(store, other, "too late")
    assert await effects(store) == ["late but welcome"]


async def test_a_result_that_is_too_large_is_refused(effective: Bench) -> None:
    store = effective
    job = await store.start()
    with pytest.raises(psycopg.Error, match=r"result: at most 1048576 bytes \(got 1048577\)") as caught:
        await complete(store, job, "large", bytes((1 << 20) + 1))
    assert caught.value.sqlstate == "SW002"
    assert (await store.row(job.job_id)).state == JobState.RUNNING
    await complete(store, job, "just fits", bytes(1 << 20))
    assert await effects(store) == ["just fits"]


async def test_a_handler_that_rolls_back_leaves_its_job_running(effective: Bench) -> None:
    store = effective
    job = await store.start()
    async with await store.connect() as connection:
        await connection.execute("INSERT INTO public.effects VALUES ('undone')")
        await connection.execute(COMPLETE, (job.job_id, job.claim, b"", ""))
        await connection.rollback()
    assert (await store.row(job.job_id)).state == JobState.RUNNING
    assert await store.history(job.job_id) is None


async def test_completion_and_reaper_at_the_same_time_make_one_end(effective: Bench) -> None:
    """The handler has called, its transaction is open, when the reaper ends the attempt as over its time: it waits."""
    store = effective
    job = await store.start()
    await store.sql("UPDATE jobs SET timeout_at = now() - interval '1 h' WHERE id = %s", job.job_id)
    outcome = AttemptOutcome.TIMED_OUT
    late = Finish(ref=job.ref, state=JobState.FAILED, error_type="timeout", message="m", outcome=outcome)
    async with await store.connect() as connection:
        await connection.execute(COMPLETE, (job.job_id, job.claim, b"", ""))
        ending = asyncio.create_task(finish.fenced_finish(store.database, 0, [(0, EPOCH)], [late], Recheck.TIMED_OUT))
        await eventually(store.waiting_for_locks, what="the reaper waits")
        await connection.commit()
    assert (await ending).ended == []
    assert (await store.history(job.job_id)).state == JobState.COMPLETED
    assert await store.attempts(job.job_id) == []


async def test_another_role_needs_no_rights_on_our_tables(effective: Bench) -> None:
    """Users keep their own role: the function runs with the rights of its owner, and finds our tables by itself."""
    store = effective
    job = await store.start()
    name = store.dsn.rpartition("/")[2]
    role = f"app_{name}"
    await store.sql(f"CREATE ROLE {role}")
    try:
        await store.sql(f"GRANT USAGE ON SCHEMA shardwheel TO {role}")
        await store.sql(f"GRANT EXECUTE ON FUNCTION shardwheel.complete_attempt TO {role}")
        async with await store.connect() as connection:
            await connection.execute(f"SET ROLE {role}".encode())
            await connection.execute("SET search_path = public")
            with pytest.raises(psycopg.Error, match="permission denied"):
                async with connection.transaction():
                    await connection.execute("SELECT FROM shardwheel_store.jobs")
            await connection.execute(COMPLETE, (job.job_id, job.claim, b"r", ""))
            await connection.commit()
    finally:
        await store.sql(f"DROP OWNED BY {role}")
        await store.sql(f"DROP ROLE {role}")
    assert (await store.history(job.job_id)).state == JobState.COMPLETED
    assert await reap.load_running(store.database, 0, 0) == []
