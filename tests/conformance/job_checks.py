"""Jobs: how they run, how they end, how results reach a node, and how attempts are stopped."""

import time

from shardwheel.v1 import worker_service_pb2
from tests.conformance.checklist import check
from tests.conformance.stage import ANSWER_S, ECHO, FAIL, FOREVER, SLEEP, Stage, expect_refs
from tests.support.waiting import eventually

_SLEEP_S = 0.4


@check("15", "a job is completed with the handler's result")
async def completes(stage: Stage) -> None:
    job = stage.job(ECHO, b'{"n": 1}')
    await stage.session(0).send_jobs(job)
    result = await stage.result(job, "completed")
    assert result.completed.result == b'{"n": 1}', f"the result is {result.completed.result!r}"


@check("15", "a handler that fails is reported with the type and the text of its error")
async def fails(stage: Stage) -> None:
    job = stage.job(FAIL)
    await stage.session(0).send_jobs(job)
    result = await stage.result(job, "failed")
    assert result.failed.error.type, "failed.error.type is empty"
    assert result.failed.error.message, "failed.error.message is empty"
    assert not result.failed.non_retryable, "failed.non_retryable is set"


@check("15", "jobs that come in one message all run, each once, also when one is sent twice")
async def batch(stage: Stage) -> None:
    session = stage.session(0)
    jobs = [stage.job() for _ in range(stage.limits[ECHO])]
    twice = stage.job(SLEEP, FOREVER)
    await session.send_jobs(*jobs, twice, twice)
    await session.send_jobs(twice)
    for job in jobs:
        await stage.result(job, "completed")
    await stage.stop(twice)
    last = stage.job()
    await session.send_jobs(last)
    await stage.result(last, "completed")
    for job in [*jobs, twice]:
        assert len(stage.results(job)) == 1, f"{len(stage.results(job))} results of one attempt"


@check("15", "a job of a handler that the worker does not have is given back")
async def unknown_handler(stage: Stage) -> None:
    job = stage.job("unheard.of")
    await stage.session(0).send_jobs(job)
    await stage.result(job, "interrupted")


@check("4", "no more attempts run at a time than hello says, whatever is handed out")
async def limit(stage: Stage) -> None:
    slots = stage.limits[SLEEP]
    jobs = [stage.job(SLEEP, b"%g" % _SLEEP_S) for _ in range(2 * slots)]
    started = time.monotonic()
    await stage.session(0).send_jobs(*jobs)
    for job in jobs:
        await stage.result(job, "completed")
    took = time.monotonic() - started
    assert took >= 2 * _SLEEP_S, f"{2 * slots} jobs of {_SLEEP_S} s each took {took:.2f} s in {slots} slots"


@check("6", "a result goes to the stream on which the attempt came")
async def way_back(stage: Stage) -> None:
    jobs = [stage.job(SLEEP, b"0.1") for _ in stage.nodes]
    for number, job in enumerate(jobs):
        await stage.session(number).send_jobs(job)
    for number, job in enumerate(jobs):
        await stage.result(job, "completed")
        [(session, _)] = stage.results(job)
        assert session is stage.session(number), f"the result of a job of node-{number} went to another node"


@check("6", "results that were not acknowledged are in the next hello and are sent again")
async def unacknowledged(stage: Stage) -> None:
    session = stage.session(0)
    for node in stage.nodes:
        node.behaviour.ack_results = None
    acknowledged, kept = stage.job(), stage.job()
    await session.send_jobs(acknowledged, kept)
    await stage.result(acknowledged, "completed")
    await stage.result(kept, "completed")
    await session.send_acks([stage.results(acknowledged)[0][1].attempt])
    await stage.audit(0)
    await session.reset()
    again = await stage.session_after(session, 0)
    expect_refs(again.hello.report.finished, [kept], "hello.report.finished")
    await eventually(
        lambda: len(stage.results(kept)) > 1, timeout_s=ANSWER_S, what="the unacknowledged result for the second time"
    )
    carrier = stage.results(kept)[-1][0]
    await carrier.send_acks([stage.results(kept)[0][1].attempt], worker_service_pb2.ResultAck.STALE)
    number = stage.open_sessions.index(carrier)
    report = await stage.audit(number, kept, acknowledged)
    expect_refs(report.finished, [], "report.finished after the acknowledgements")


@check("1", "attempts that run are in the next hello, and go on")
async def reattached(stage: Stage) -> None:
    session = stage.session(0)
    job = stage.job(SLEEP, FOREVER)
    await session.send_jobs(job)
    await stage.runs(job)
    await session.reset()
    again = await stage.session_after(session, 0)
    expect_refs(again.hello.report.running, [job], "hello.report.running")
    await stage.runs(job)
    await stage.stop(job)
    assert len(stage.results(job)) == 1, "there is more than one result"


@check("3", "attempts that the welcome names as superseded are stopped, and have no result")
async def superseded_by_welcome(stage: Stage) -> None:
    session = stage.session(0)
    job = stage.job(SLEEP, FOREVER)
    await session.send_jobs(job)
    await stage.runs(job)
    stage.nodes[0].behaviour.superseded = [(job.job_id, job.claim)]
    await session.reset()
    await stage.session_after(session, 0)
    await _gone(stage, job)


@check("8", "an attempt that is cancelled says so with the reason")
async def cancelled(stage: Stage) -> None:
    session = stage.session(0)
    for reason in (worker_service_pb2.CANCEL_REQUESTED, worker_service_pb2.CANCEL_TIMEOUT):
        job = stage.job(SLEEP, FOREVER)
        await session.send_jobs(job)
        await stage.runs(job)
        # Another claim of the job, and a job that is not here: nothing to stop, nothing to say.
        await session.send_cancel(job.job_id, job.claim + 1, reason)
        await session.send_cancel(stage.job().job_id, 1, reason)
        await stage.runs(job)
        await session.send_cancel(job.job_id, job.claim, reason)
        result = await stage.result(job, "stopped")
        assert result.stopped.reason == reason, f"stopped.reason is {result.stopped.reason}, the cancel said {reason}"


@check("8", "an attempt that waits in the worker can be cancelled")
async def cancelled_while_waiting(stage: Stage) -> None:
    session, slots = stage.session(0), stage.limits[SLEEP]
    jobs = [stage.job(SLEEP, FOREVER) for _ in range(slots + 1)]
    await session.send_jobs(*jobs)
    await stage.runs(*jobs)
    for job in reversed(jobs):
        await session.send_cancel(job.job_id, job.claim, worker_service_pb2.CANCEL_REQUESTED)
        await stage.result(job, "stopped")


@check("8", "an attempt that is cancelled as superseded has no result")
async def superseded_by_cancel(stage: Stage) -> None:
    job = stage.job(SLEEP, FOREVER)
    await stage.session(0).send_jobs(job)
    await stage.runs(job)
    await stage.session(0).send_cancel(job.job_id, job.claim, worker_service_pb2.CANCEL_SUPERSEDED)
    await _gone(stage, job)


@check("3", "a later claim of a job takes the place of the earlier one, on whichever stream it comes")
async def superseded_by_claim(stage: Stage) -> None:
    older = stage.job(SLEEP, FOREVER)
    await stage.session(0).send_jobs(older)
    await stage.runs(older)
    newer = stage.job(SLEEP, b"0.1", claim=2)
    newer.job_id = older.job_id
    await stage.session(1).send_jobs(newer)
    await stage.result(newer, "completed")
    await _gone(stage, older)


async def _gone(stage: Stage, job: worker_service_pb2.Assignment) -> None:
    """Wait until the worker holds an attempt no more; it must not have sent a result of it."""

    async def reported() -> bool:
        report = await stage.audit(0, job)
        return not report.running and not report.finished

    await eventually(reported, timeout_s=ANSWER_S, what="a report without the superseded attempt")
    await stage.granted(SLEEP, stage.limits[SLEEP])
    assert not stage.results(job), "a result of a superseded attempt was sent"
