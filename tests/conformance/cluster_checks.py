"""Several nodes: epochs, questions, credit, members, and the end of a node or of the worker."""

import asyncio

from shardwheel.v1.worker_service_pb2 import ResultAck
from tests.conformance.checklist import Setting, check
from tests.conformance.stage import ANSWER_S, ECHO, FOREVER, SLEEP, Stage, expect_refs
from tests.support.waiting import eventually


@check("5", "an assignment below the highest epoch of its shard is given back, on whichever stream it comes")
async def old_epochs(stage: Stage) -> None:
    shard = 7
    await stage.owner_hello(1, {shard: 5})
    old = stage.job(shard=shard, epoch=4)
    current = stage.job(shard=shard, epoch=5)
    elsewhere = stage.job(shard=shard + 1, epoch=1)
    await stage.session(0).send_jobs(old, current, elsewhere)
    await stage.result(old, "interrupted")
    await stage.result(current, "completed")
    await stage.result(elsewhere, "completed")
    newer = stage.job(shard=shard, epoch=9)
    await stage.session(2).send_jobs(newer)
    await stage.result(newer, "completed")
    late = stage.job(shard=shard, epoch=8)
    await stage.session(0).send_jobs(late)
    await stage.result(late, "interrupted")


@check("10", "owner_hello is answered with what the worker holds of those shards, from any stream")
async def owner_hello(stage: Stage) -> None:
    inside, outside = stage.job(SLEEP, FOREVER, shard=11), stage.job(SLEEP, FOREVER, shard=12)
    await stage.session(0).send_jobs(inside, outside)
    await stage.runs(inside, outside)
    report = await stage.owner_hello(1, {11: 3, 13: 3})
    expect_refs(report.running, [inside], "report.running")
    assert sorted(report.shards) == [11, 13], f"report.shards is {list(report.shards)}, the node asked for 11 and 13"
    await stage.stop(inside, outside)


@check("10", "audit is answered with the attempts that the worker holds, among those that were asked for")
async def audit(stage: Stage) -> None:
    stage.nodes[0].behaviour.ack_results = None
    running, ended, other = stage.job(SLEEP, FOREVER), stage.job(ECHO), stage.job(SLEEP, FOREVER)
    await stage.session(0).send_jobs(running, ended, other)
    await stage.result(ended, "completed")
    report = await stage.audit(1, running, ended)
    expect_refs(report.running, [running], "report.running")
    expect_refs(report.finished, [ended], "report.finished")
    await stage.session(0).send_acks([result.attempt for _, result in stage.results(ended)])
    stage.nodes[0].behaviour.ack_results = ResultAck.ACCEPTED
    await stage.stop(running, other)


@check("10", "an attempt that a report left out is refused when it comes after all, a later claim of it runs")
async def disclaimed(stage: Stage) -> None:
    job = stage.job()
    report = await stage.audit(1, job)
    expect_refs([*report.running, *report.finished], [], "report of a job that never came")
    await stage.session(0).send_jobs(job)
    await stage.result(job, "interrupted")
    again = stage.job(claim=2)
    again.job_id = job.job_id
    await stage.session(2).send_jobs(again)
    await stage.result(again, "completed")


@check("4", "credits are counted from 1, and give every slot to some node")
async def credits(stage: Stage) -> None:
    for session in stage.open_sessions:
        assert session is not None
        sequence = [request.credit.sequence for request in session.of_kind("credit")]
        assert sequence == list(range(1, len(sequence) + 1)), f"sequence of the credits on a stream: {sequence}"
    assert sum(stage.credit(ECHO)) == stage.limits[ECHO], f"slots granted: {stage.credit(ECHO)}"


@check("4", "slots move to the node where jobs wait")
async def demand(stage: Stage) -> None:
    limit = stage.limits[SLEEP]
    for wanting in ([0, limit, 0], [0, 0, limit]):
        session = stage.session(wanting.index(limit))
        await session.send_demand(SLEEP, 50)
        await _shared(stage, wanting)
        await session.send_demand(ECHO, 0)


@check("4", "a slot moves only when the node that had it has acknowledged its smaller credit")
async def two_steps(stage: Stage) -> None:
    limit = stage.limits[SLEEP]
    await stage.session(0).send_demand(SLEEP, 50)
    await eventually(lambda: stage.credit(SLEEP)[0] == limit, timeout_s=ANSWER_S, what="all slots for node-0")
    stage.nodes[0].behaviour.ack_credits = False
    await stage.session(0).send_demand(ECHO, 0)
    await stage.session(1).send_demand(SLEEP, 50)
    await eventually(lambda: stage.credit(SLEEP)[0] < limit, timeout_s=ANSWER_S, what="a smaller credit for node-0")
    # It has not read that yet, and hands out jobs on its old credit.
    jobs = [stage.job(SLEEP, b"0.3") for _ in range(limit)]
    await stage.session(0).send_jobs(*jobs)
    await stage.audit(1)
    assert stage.credit(SLEEP)[1:] == [0, 0], f"slots were granted twice: {stage.credit(SLEEP)}"
    latest = stage.session(0).of_kind("credit")[-1].credit.sequence
    await stage.session(0).send_credit_ack(latest)
    for job in jobs:
        await stage.result(job, "completed")
    stage.nodes[0].behaviour.ack_credits = True
    await stage.session(0).send_credit_ack(stage.session(0).of_kind("credit")[-1].credit.sequence)
    await eventually(lambda: stage.credit(SLEEP)[1] == limit, timeout_s=ANSWER_S, what="all slots for node-1")
    await stage.session(1).send_demand(ECHO, 0)


@check("4", "what came on a stream that broke keeps its slots, and its results go elsewhere")
async def orphans(stage: Stage) -> None:
    limit, old = stage.limits[SLEEP], stage.session(2)
    job = stage.job(SLEEP, FOREVER)
    await old.send_jobs(job)
    await stage.runs(job, number=2)
    await stage.nodes[2].stop()
    try:
        await stage.granted(SLEEP, limit - 1)
        await stage.stop(job)
        await stage.granted(SLEEP, limit)
    finally:
        await stage.nodes[2].start()
    await stage.session_after(old, 2)


@check("11", "a node that is about to stop gets no slots, and no results if there are others")
async def draining_node(stage: Stage) -> None:
    limit, draining = stage.limits[SLEEP], stage.session(2)
    job = stage.job(SLEEP, FOREVER)
    await draining.send_jobs(job)
    await stage.runs(job, number=2)
    await draining.send_drain()
    await eventually(lambda: stage.credit(SLEEP)[2] == 0, timeout_s=ANSWER_S, what="no slots for the node that stops")
    await stage.granted(SLEEP, limit - 1)
    await stage.stop(job, number=2)
    [(carrier, _)] = stage.results(job)
    assert carrier is not draining, "the result went to the node that is about to stop"
    await stage.granted(SLEEP, limit)
    await draining.close()
    await stage.session_after(draining, 2)


@check("11", "the stream to a node that left is ended without goodbye, and opened when it is back")
async def member_left(stage: Stage) -> None:
    old = stage.session(2)
    # The node itself has lost touch, and does not know.
    remaining = {name: address for name, address in stage.members.items() if name != "node-2"}
    for number in (0, 1):
        await stage.session(number).send_members(remaining)
    await asyncio.wait_for(old.ended.wait(), ANSWER_S)
    assert not old.of_kind("goodbye"), "goodbye was said to a node that left"
    await stage.granted(SLEEP, stage.limits[SLEEP])
    for number in (0, 1):
        await stage.session(number).send_members(dict(stage.members))
    await stage.session_after(old, 2)


@check("11", "a node that another one names is a member, though a third one has lost touch")
async def lost_touch(stage: Stage) -> None:
    sessions = list(stage.open_sessions)
    await stage.session(2).send_members({"node-2": stage.nodes[2].address})
    await stage.audit(2)
    job = stage.job()
    await stage.session(0).send_jobs(job)
    await stage.result(job, "completed")
    assert stage.open_sessions == sessions, "a stream was ended"


@check("9", "after SIGTERM running jobs may end, new ones are given back, and goodbye comes last", Setting())
async def graceful_stop(stage: Stage) -> None:
    await stage.join()
    job = stage.job(SLEEP, b"3")
    await stage.session(0).send_jobs(job)
    await stage.runs(job)
    sessions = [stage.session(number) for number in range(len(stage.nodes))]
    stage.process.terminate()
    await stage.granted(SLEEP, 0)
    late = stage.job()
    await sessions[1].send_jobs(late)
    await stage.result(late, "interrupted")
    await stage.result(job, "completed")
    code = await stage.process.ended(ANSWER_S)
    assert code == 0, f"the exit code is {code}"
    for session in sessions:
        await asyncio.wait_for(session.ended.wait(), ANSWER_S)
        assert session.received[-1].WhichOneof("message") == "goodbye", "the last message is not goodbye"


@check("9", "what still runs after the grace is given back", Setting(grace_s=0.5))
async def out_of_grace(stage: Stage) -> None:
    await stage.join()
    job = stage.job(SLEEP, FOREVER)
    await stage.session(0).send_jobs(job)
    await stage.runs(job)
    stage.process.terminate()
    await stage.result(job, "interrupted")
    code = await stage.process.ended(ANSWER_S)
    assert code == 0, f"the exit code is {code}"


async def _shared(stage: Stage, slots: list[int]) -> None:
    """Wait until each node has so many slots."""
    what = f"slots of {slots} for the nodes; jobs wait at the one with all of them"
    await eventually(lambda: stage.credit(SLEEP) == slots, timeout_s=ANSWER_S, what=what)
