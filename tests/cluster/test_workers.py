"""Workers that are stopped, killed and asked to stop, as real processes."""

import asyncio
import time
from collections.abc import Callable, Sequence

import psycopg

from tests.cluster.client import RETRY, Load, Wish
from tests.cluster.cluster import QUICK, Cluster, StartCluster
from tests.cluster.evidence import read_executions
from tests.cluster.history import Execution
from tests.cluster.run import Run, new_run
from tests.cluster.worker_program import COMPLETED, LONG, SHORT, STUBBORN
from tests.support.waiting import eventually
from worker_sdk import NewJob

_FOR_EVER_S = 600.0


def _wish(name: str, handler: str, first_s: float, later_s: float = 0.0) -> Wish:
    payload = {"first_s": first_s, "later_s": later_s}
    return Wish(NewJob(handler=handler, payload=payload, name=name, dedupe_key=name, retry=RETRY))


def _run(cluster: Cluster) -> Run:
    return new_run(cluster, seed=0, load=Load(seconds=0.0))


async def _until(
    cluster: Cluster, condition: Callable[[Sequence[Execution]], bool], what: str, timeout_s: float = 10.0
) -> None:
    await eventually(lambda: condition(read_executions(cluster.execution_files)), timeout_s=timeout_s, what=what)


def _running(executions: Sequence[Execution], ids: Sequence[int], worker: int) -> bool:
    """Whether all these jobs run in the process with this id."""
    return set(ids) <= {one.job for one in executions if one.pid == worker and one.ended is None}


async def test_late_result_of_a_stopped_worker_is_refused(start_cluster: StartCluster) -> None:
    """C9: A is stopped beyond its lease, B runs its jobs again; A goes on, and its success is not accepted.

    One of A's handlers obeys the cancel that it gets then; the other hears nothing and comes to its end.
    """
    cluster = await start_cluster(workers=1, settings={**QUICK, "worker_lease": "2s", "heartbeat": "400ms"})
    run = _run(cluster)
    first = cluster.workers[0]
    ids = await run.submitters.send(
        [_wish("obeys", SHORT, _FOR_EVER_S), _wish("obeys-in-thread", LONG, _FOR_EVER_S), _wish("deaf", STUBBORN, 2.5)]
    )
    await _until(cluster, lambda found: _running(found, ids, first.pid), "the jobs to run")
    stopped = first.pause()
    second = cluster.add_worker("worker-2")
    second.start()
    await _until(
        cluster,
        lambda found: {one.job for one in found if one.pid == second.pid and one.outcome == COMPLETED} == set(ids),
        "the jobs to run again",
        timeout_s=15.0,
    )
    first.resume(stopped)
    await _until(
        cluster,
        lambda found: {one.job for one in found if one.pid == stopped and one.ended is not None} == set(ids),
        "the end of the stopped handlers",
    )
    outcomes = {one.job: one.outcome for one in read_executions(cluster.execution_files) if one.pid == stopped}
    assert [outcomes[job] for job in ids] == ["CancelledError", "Cancelled", COMPLETED]
    # A result of the worker that went on would be known by now: it says goodbye only when all are acknowledged.
    assert await first.terminate(10.0) == 0
    await run.quiet()
    history, verdict = run.verdict()
    assert verdict.numbers["again_worker_stopped"] == 3
    assert verdict.numbers["overlapping_exempt"] == 3
    assert {job.result_pid for job in history.jobs} == {second.pid}


async def test_same_name_restart(start_cluster: StartCluster) -> None:
    """C11: kill -9 of a worker with ten running jobs; a new one of its name gets them, before any lease is over."""
    cluster = await start_cluster(workers=1, settings={**QUICK, "worker_lease": "60s", "reset_grace": "60s"})
    run = _run(cluster)
    worker = cluster.workers[0]
    ids = await run.submitters.send([_wish(f"lost-{number}", LONG, _FOR_EVER_S) for number in range(10)])
    await _until(cluster, lambda found: _running(found, ids, worker.pid), "the jobs to run")
    worker.kill()
    worker.start()
    began = time.monotonic()
    await _until(
        cluster, lambda found: {one.job for one in found if one.pid == worker.pid} == set(ids), "the jobs to run again"
    )
    assert time.monotonic() - began < 8.0
    await run.quiet()
    _, verdict = run.verdict()
    assert verdict.numbers["again_worker_died"] == 10


async def test_graceful_stop(start_cluster: StartCluster) -> None:
    """C19: SIGTERM with five jobs that end within the grace and one that never does.

    The grace is longer than the worker's lease, so that only heartbeats keep the five from being taken away.
    """
    cluster = await start_cluster(
        workers=1, settings={**QUICK, "worker_lease": "1500ms", "heartbeat": "300ms"}, worker_grace_s=4.0
    )
    run = _run(cluster)
    first = cluster.workers[0]
    second = cluster.add_worker("worker-2")
    ending = await run.submitters.send([_wish(f"ends-{number}", LONG, 3.5) for number in range(5)])
    [endless] = await run.submitters.send([_wish("endless", SHORT, _FOR_EVER_S)])
    await _until(cluster, lambda found: _running(found, [*ending, endless], first.pid), "the jobs to run")
    second.start()
    await cluster.until_connected([second.name])
    assert await first.terminate(15.0) == 0
    await run.quiet()
    history, verdict = run.verdict()
    assert verdict.numbers["again_given_back"] == 1
    by_job = {job: [one for one in history.executions if one.job == job] for job in [*ending, endless]}
    for job in ending:
        assert [(one.pid, one.claim, one.outcome) for one in by_job[job]] == [(first.pid, 1, COMPLETED)]
    [there, elsewhere] = by_job[endless]
    assert (there.pid, there.attempt, there.outcome) == (first.pid, 1, "CancelledError")
    assert (elsewhere.pid, elsewhere.attempt, elsewhere.outcome) == (second.pid, 1, COMPLETED)
    assert there.ended is not None
    assert elsewhere.started.mono - there.ended.mono < 1.0, "was not available at once"
    assert await asyncio.to_thread(_end_reason, cluster, first.name) == "worker stops"


def _end_reason(cluster: Cluster, worker: str) -> str:
    with psycopg.connect(cluster.dsn) as connection:
        rows = connection.execute("SELECT end_reason FROM workers WHERE name = %s", (worker,)).fetchall()
    assert len(rows) == 1
    return str(rows[0][0])
