"""Streams: introduction, heartbeats, what happens when they break, and refusals."""

import asyncio

import grpc

from shardwheel.v1.worker_service_pb2 import SessionResponse
from tests.conformance.checklist import Setting, check
from tests.conformance.stage import ANSWER_S, ECHO, FAIL, FOREVER, HEARTBEAT_S, SLEEP, START_S, TOKEN, Stage
from tests.support.waiting import eventually

_BEATS = 10
# A worker with an interval of its own, such as the 3 s of most clusters, does not come to so many in this time.
_BEATS_S = 15.0


@check("1", "hello is complete: name, incarnation, handlers with their limits, an empty report")
async def introduction(stage: Stage) -> None:
    hello = stage.hellos[0]
    assert hello.worker, "hello.worker is empty"
    assert hello.incarnation > 0, f"hello.incarnation is {hello.incarnation}; it has to be positive"
    limits = stage.limits
    assert set(limits) >= {ECHO, SLEEP, FAIL}, (
        f"hello.handlers has {sorted(limits)}; the checks need {ECHO}, {SLEEP}, {FAIL}"
    )
    assert min(limits[ECHO], limits[SLEEP]) >= 2, "max_concurrency has to be 2 or more for the checks"
    assert not hello.report.running, "the report of a worker that has just started names running attempts"
    assert not hello.report.finished, "the report of a worker that has just started names results"


@check("1", "every stream has the token, the name and the incarnation of the first one")
async def same_worker(stage: Stage) -> None:
    for session in stage.open_sessions:
        assert session is not None
        got = session.metadata.get("authorization")
        assert got == f"Bearer {TOKEN}", f"metadata authorization is {got!r}; SHARDWHEEL_TOKEN is {TOKEN!r}"
    names = {(hello.worker, hello.incarnation) for hello in stage.hellos}
    assert len(names) == 1, f"one process introduced itself as {sorted(names)}"


@check("7", "heartbeats come at the interval of the welcome, counted from 1, while all slots are busy")
async def heartbeats(stage: Stage) -> None:
    jobs = [stage.job(SLEEP, FOREVER) for _ in range(stage.credit(SLEEP)[0])]
    session = stage.session(0)
    await session.send_jobs(*jobs)
    await stage.runs(*jobs)
    before = len(session.of_kind("heartbeat"))

    def enough() -> bool:
        return len(session.of_kind("heartbeat")) >= before + _BEATS

    what = f"{_BEATS} heartbeats; the welcome asks for one each {HEARTBEAT_S} s"
    await eventually(enough, timeout_s=_BEATS_S, what=what)
    sequence = [request.heartbeat.sequence for request in session.of_kind("heartbeat")]
    assert sequence == list(range(1, len(sequence) + 1)), f"sequence of the heartbeats: {sequence}"
    await stage.stop(*jobs)


@check("12", "a node that answers nothing any more is given up, and found again")
async def silent_node(stage: Stage) -> None:
    old = stage.session(2)
    stage.nodes[2].behaviour.ack_heartbeats = False
    await asyncio.wait_for(old.ended.wait(), ANSWER_S)
    stage.nodes[2].behaviour.ack_heartbeats = True
    await stage.session_after(old, 2)


@check("12", "a node that was away is found again")
async def node_away(stage: Stage) -> None:
    old = stage.session(1)
    await stage.nodes[1].stop()
    await asyncio.wait_for(old.ended.wait(), ANSWER_S)
    await stage.nodes[1].start()
    await stage.session_after(old, 1)


@check("13", "unknown messages are ignored")
async def unknown_message(stage: Stage) -> None:
    await stage.session(0).send(SessionResponse.FromString(b"\xfa\x3f\x00"))
    job = stage.job()
    await stage.session(0).send_jobs(job)
    await stage.result(job, "completed")


_IN_USE = Setting(refusal=(grpc.StatusCode.ALREADY_EXISTS, "another worker has this name"))
_MALFORMED = Setting(refusal=(grpc.StatusCode.INVALID_ARGUMENT, "hello.worker is too long"))


@check("14", "a worker that is refused for now tries again until it is welcome", _IN_USE)
async def refused_for_now(stage: Stage) -> None:
    await stage.start()
    await eventually(lambda: len(stage.hellos) >= 2, timeout_s=START_S, what="a second hello after a refusal")
    stage.nodes[0].behaviour.refusal = None
    await eventually(lambda: stage.open_sessions[0], timeout_s=ANSWER_S, what="a hello after the refusals")


@check("14", "a worker whose hello is malformed ends, with an exit code other than 0", _MALFORMED)
async def refused_for_good(stage: Stage) -> None:
    await stage.start()
    code = await stage.process.ended(START_S)
    assert code != 0, "the exit code is 0"


@check("14", "a worker speaks TLS when it is given a certificate authority", Setting(secured=True))
async def secured(stage: Stage) -> None:
    await stage.join()
    job = stage.job()
    await stage.session(1).send_jobs(job)
    await stage.result(job, "completed")
