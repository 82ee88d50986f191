"""A worker's conversation with one node, over a real socket."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass

import grpc
import pytest

from shardwheel.v1 import worker_service_pb2
from shardwheel.v1.worker_service_pb2 import AttemptRef, ResultAck
from tests.integration.worker_sdk.conftest import Workers
from tests.support.scripted_server import ScriptedServer, assignment
from tests.support.waiting import eventually
from worker_sdk import CancelReason, Context, InvalidArgument, NonRetryable, RetryAfter, RetryPolicy, Snooze, Worker


def ref(job_id: int, claim: int = 1) -> AttemptRef:
    return AttemptRef(job_id=job_id, claim=claim)


@dataclass
class Gate:
    """Lets a test hold handlers, and see what runs."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.started: Counter[int] = Counter()
        self.reasons: dict[int, CancelReason | None] = {}

    async def hold(self, ctx: Context) -> None:
        self.started[ctx.job_id] += 1
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - opened from another thread
                await asyncio.sleep(0.005)
        finally:
            self.reasons[ctx.job_id] = ctx.cancel_reason


def gated_worker(address: str, gate: Gate, *, max_concurrency: int = 10) -> Worker:
    worker = Worker(address, name="w", watchdog=0)

    @worker.handler("hold", max_concurrency=max_concurrency)
    async def hold(payload: object, ctx: Context) -> str:
        await gate.hold(ctx)
        return "done"

    return worker


async def test_a_worker_introduces_itself_runs_jobs_and_says_goodbye(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w-1", namespace="tenant", token="secret", watchdog=0)

    @worker.handler("greet", max_concurrency=3, timeout=20, retry=RetryPolicy(max_attempts=7))
    async def greet(payload: dict[str, str]) -> str:
        return f"hello {payload['name']}"

    @worker.handler("double", max_concurrency=2)
    def double(payload: int) -> int:
        return 2 * payload

    session = await workers.connect(worker, node)
    hello = session.hello
    assert (hello.worker, hello.namespace) == ("w-1", "tenant")
    assert hello.incarnation > 0
    assert hello.sdk.startswith("python/")
    assert [(item.handler, item.max_concurrency) for item in hello.handlers] == [("greet", 3), ("double", 2)]
    assert hello.handlers[0].retry.max_attempts == 7
    assert hello.handlers[0].timeouts.attempt_timeout.seconds == 20
    assert node.metadata["authorization"] == "Bearer secret"
    await session.expect_credit("greet", 3)
    await session.expect_credit("double", 2)
    await session.send_jobs(assignment(1, "greet", payload=b'{"name": "Ada"}'), assignment(2, "double", payload=b"21"))
    results = {result.attempt.job_id: result for result in await session.expect_results(2)}
    assert results[1].completed.result == b'"hello Ada"'
    assert results[2].completed.result == b"42"
    assert results[2].completed.content_type == "application/json"
    first = await session.expect("heartbeat")
    second = await session.expect("heartbeat")
    assert second.heartbeat.sequence == first.heartbeat.sequence + 1
    await asyncio.to_thread(worker.stop)
    assert session.received[-1].WhichOneof("message") == "goodbye"
    assert session.credit == {"greet": 0, "double": 0}


async def test_each_way_to_end_has_its_outcome(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w", watchdog=0)

    @worker.handler("end")
    async def end(payload: str) -> object:
        match payload:
            case "snooze":
                raise Snooze(90)
            case "retry":
                raise RetryAfter(30, "busy")
            case "never":
                raise NonRetryable("no such customer")
            case "surrogate":
                raise ValueError("bad \ud800 and \x00 and long " + "x" * 5_000_000)
            case "exit":
                raise SystemExit(3)
            case "large":
                return b"x" * 1001
            case "unwritable":
                return object()
            case _:
                return None

    session = await workers.connect(worker, node)
    names = ["snooze", "retry", "never", "surrogate", "exit", "large", "unwritable", "nothing"]
    jobs = [assignment(i, "end", payload=b'"%s"' % name.encode()) for i, name in enumerate(names)]
    await session.send_jobs(*jobs, assignment(100, "end", payload=b"17"))
    results = {item.attempt.job_id: item for item in await session.expect_results(len(names) + 1)}
    assert results[0].snoozed.delay.seconds == 90
    assert results[1].failed.retry_after.seconds == 30
    assert results[1].failed.error.type == "RetryAfter"
    assert results[1].failed.error.message.startswith("busy")
    assert results[2].failed.non_retryable
    assert results[2].failed.error.message.startswith("no such customer")
    surrogate = results[3].failed.error.message
    assert surrogate.startswith("bad ? and \N{REPLACEMENT CHARACTER} and long x")
    assert len(surrogate.encode()) <= 16 << 10
    assert results[4].failed.error.type == "SystemExit"
    assert not results[4].failed.non_retryable
    assert results[5].failed.error.type == "result_too_large"
    assert results[6].failed.error.type == "PayloadError"
    assert results[7].completed.result == b""
    assert results[100].failed.error.type == "PayloadError"
    assert results[100].failed.error.message.startswith("payload: 17 is not a string")


async def test_results_without_acknowledgement_are_reported_and_sent_again(
    node: ScriptedServer, workers: Workers
) -> None:
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate), node)
    node.behaviour.ack_results = None
    await session.send_jobs(assignment(1, "hold"), assignment(2, "hold"))
    await eventually(lambda: gate.started[2])
    gate.open.set()
    await session.expect_results(2)
    gate.open.clear()
    await session.send_jobs(assignment(3, "hold", claim=5))
    await eventually(lambda: gate.started[3])
    await session.send_acks([ref(2)])
    await session.reset()

    again = await node.next_session()
    assert list(again.hello.report.finished) == [ref(1)]
    assert list(again.hello.report.running) == [ref(3, claim=5)]
    assert again.hello.incarnation == session.hello.incarnation
    (result,) = await again.expect_results(1)
    assert result.attempt == ref(1)
    # A stale result is forgotten like any other.
    await again.send_acks([ref(1)], ResultAck.STALE)
    await again.send_audit(1, (1, 1), (3, 5))
    report = await again.expect_report(1)
    assert list(report.running) == [ref(3, claim=5)]
    assert not report.finished
    gate.open.set()
    (result,) = await again.expect_results(1)
    assert result.attempt == ref(3, claim=5)
    assert gate.started == {1: 1, 2: 1, 3: 1}
    await again.send_acks([ref(3, claim=5)])


async def test_messages_of_an_old_stream_are_discarded(node: ScriptedServer, workers: Workers) -> None:
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate), node)
    await session.send_jobs(assignment(1, "hold"))
    await eventually(lambda: gate.started[1])
    await session.reset()
    again = await node.next_session()
    assert list(again.hello.report.running) == [ref(1)]
    # The first stream is gone; a job handed out on the second runs once, though it is sent twice.
    await again.send_jobs(assignment(2, "hold"), assignment(2, "hold"))
    await again.send_jobs(assignment(2, "hold"))
    await eventually(lambda: gate.started[2])
    gate.open.set()
    await again.expect_results(2)
    await again.send_audit(7, (1, 1), (2, 1))
    report = await again.expect_report(7)
    assert not report.running
    assert gate.started == {1: 1, 2: 1}


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_cancelled_attempt_stops_and_says_why(node: ScriptedServer, workers: Workers, kind: str) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    started: Counter[int] = Counter()

    if kind == "async":

        @worker.handler("wait")
        async def wait_async(payload: object, ctx: Context) -> None:
            started[ctx.job_id] += 1
            await asyncio.sleep(60)

    else:

        @worker.handler("wait")
        def wait_sync(payload: object, ctx: Context) -> str:
            started[ctx.job_id] += 1
            # Seeing the signal and returning is stopping, too.
            return "stopped" if ctx.cancelled.wait(60) else "completed"

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "wait"), assignment(2, "wait"))
    await eventually(lambda: len(started) == 2)
    await session.send_cancel(1, 1, worker_service_pb2.CANCEL_REQUESTED)
    await session.send_cancel(2, 1, worker_service_pb2.CANCEL_TIMEOUT)
    # Another claim of the job, and a job that is not here: nothing to stop, nothing to say.
    await session.send_cancel(2, 9, worker_service_pb2.CANCEL_REQUESTED)
    await session.send_cancel(3, 1, worker_service_pb2.CANCEL_REQUESTED)
    results = {item.attempt.job_id: item for item in await session.expect_results(2)}
    assert results[1].stopped.reason == worker_service_pb2.CANCEL_REQUESTED
    assert results[2].stopped.reason == worker_service_pb2.CANCEL_TIMEOUT


async def test_a_handler_that_completes_before_it_sees_the_cancel_has_completed(
    node: ScriptedServer, workers: Workers
) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    started, go_on = threading.Event(), threading.Event()

    @worker.handler("stubborn")
    def stubborn(payload: object) -> str:
        started.set()
        go_on.wait(5)
        return "all done"

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "stubborn"))
    await eventually(started.is_set)
    await session.send_cancel(1, 1, worker_service_pb2.CANCEL_REQUESTED)
    await session.send_audit(1, (1, 1))
    await session.expect_report(1)
    go_on.set()
    (result,) = await session.expect_results(1)
    assert result.completed.result == b'"all done"'


async def test_an_attempt_over_its_time_is_stopped_though_no_node_says_so(
    node: ScriptedServer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_sdk.inbox._DEADLINE_SLACK_S", 0.05)
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate), node)
    await session.send_jobs(assignment(1, "hold", time_left_s=0.1))
    (result,) = await session.expect_results(1)
    assert result.stopped.reason == worker_service_pb2.CANCEL_TIMEOUT
    assert gate.reasons[1] is CancelReason.TIMEOUT


async def test_superseded_attempts_are_stopped_and_their_results_dropped(
    node: ScriptedServer, workers: Workers
) -> None:
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate), node)
    node.behaviour.ack_results = None
    node.behaviour.superseded = [(1, 1), (4, 1)]
    await session.send_jobs(*(assignment(i, "hold") for i in (1, 2, 3)))
    await eventually(lambda: len(gate.started) == 3)
    await session.reset()
    again = await node.next_session()
    # 1 by the welcome, 2 by a cancel, 3 by a newer claim of the same job.
    await again.send_cancel(2, 1, worker_service_pb2.CANCEL_SUPERSEDED)
    await again.send_jobs(assignment(3, "hold", claim=2, attempt=2))
    await eventually(lambda: gate.started[3] == 2)
    await eventually(lambda: gate.reasons == dict.fromkeys((1, 2, 3), CancelReason.SUPERSEDED))
    await again.send_audit(5, (1, 1), (2, 1), (3, 1), (3, 2))
    report = await again.expect_report(5)
    assert list(report.running) == [ref(3, claim=2)]
    assert not report.finished
    gate.open.set()
    (result,) = await again.expect_results(1)
    assert result.attempt == ref(3, claim=2)
    assert result.HasField("completed")
    await again.send_acks([result.attempt])


async def test_assignments_below_the_highest_epoch_of_the_shard_are_refused(
    node: ScriptedServer, workers: Workers
) -> None:
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate), node)
    shard_7, other_of_7, shard_8 = (1 << 12) | 7, (2 << 12) | 7, (1 << 12) | 8
    await session.send_jobs(assignment(shard_7, "hold", epoch=3), assignment(shard_8, "hold", epoch=1))
    await eventually(lambda: len(gate.started) == 2)
    await session.send_owner_hello(11, {7: 5, 9: 2})
    report = await session.expect_report(11)
    assert list(report.running) == [ref(shard_7)]
    assert list(report.shards) == [7, 9]
    await session.send_jobs(assignment(other_of_7, "hold", epoch=4), assignment((2 << 12) | 8, "hold", epoch=1))
    await eventually(lambda: gate.started[(2 << 12) | 8])
    await session.send_audit(12, (other_of_7, 1))
    report = await session.expect_report(12)
    assert not report.running
    assert not report.finished
    await session.send_jobs(assignment(other_of_7, "hold", epoch=5, claim=2))
    await eventually(lambda: gate.started[other_of_7] == 1)
    gate.open.set()
    await session.expect_results(4)


async def test_a_job_of_an_unknown_handler_is_given_back(node: ScriptedServer, workers: Workers) -> None:
    session = await workers.connect(gated_worker(node.address, Gate()), node)
    await session.send_jobs(assignment(1, "unheard.of"))
    (result,) = await session.expect_results(1)
    assert result.HasField("interrupted")


async def test_more_jobs_than_slots_wait_in_the_worker(node: ScriptedServer, workers: Workers) -> None:
    gate = Gate()
    session = await workers.connect(gated_worker(node.address, gate, max_concurrency=2), node)
    await session.send_jobs(*(assignment(i, "hold") for i in range(5)))
    await session.send_audit(1, *((i, 1) for i in range(5)))
    assert len((await session.expect_report(1)).running) == 5
    await eventually(lambda: len(gate.started) == 2)
    await session.send_cancel(4, 1, worker_service_pb2.CANCEL_REQUESTED)
    (result,) = await session.expect_results(1)
    assert result.attempt == ref(4)
    assert result.HasField("stopped")
    assert sum(gate.started.values()) == 2
    gate.open.set()
    await session.expect_results(4)
    assert gate.started == dict.fromkeys(range(4), 1)


async def test_a_silent_node_is_given_up_and_found_again(node: ScriptedServer, workers: Workers) -> None:
    session = await workers.connect(gated_worker(node.address, Gate()), node)
    node.behaviour.ack_heartbeats = False
    again = await node.next_session()
    assert session.ended.is_set()
    assert again.hello.incarnation == session.hello.incarnation


async def test_a_node_that_comes_back_is_found_again(node: ScriptedServer, workers: Workers) -> None:
    gate = Gate()
    worker = gated_worker(node.address, gate)
    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "hold"))
    await eventually(lambda: gate.started[1])
    await node.stop()
    await eventually(lambda: not worker.nodes)
    gate.open.set()
    await node.start()
    again = await node.next_session()
    (result,) = await again.expect_results(1)
    assert result.attempt == ref(1)


@pytest.mark.parametrize("code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION])
async def test_a_refused_worker_tries_again_until_it_is_accepted(
    node: ScriptedServer, workers: Workers, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    node.behaviour.refusal = (code, "another worker has this name")
    await workers.start(gated_worker(node.address, Gate()))
    await eventually(lambda: len(node.hellos) >= 3)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == 1
    assert "another worker has this name" in messages[0]
    node.behaviour.refusal = None
    await node.next_session()


async def test_a_worker_whose_introduction_is_wrong_stops_with_the_reason(node: ScriptedServer) -> None:
    node.behaviour.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "worker: the name is too long")
    worker = gated_worker(node.address, Gate())
    with pytest.raises(InvalidArgument, match="the name is too long"):
        await asyncio.to_thread(worker.run)
    assert len(node.hellos) == 1


async def test_unknown_messages_are_ignored(node: ScriptedServer, workers: Workers) -> None:
    session = await workers.connect(gated_worker(node.address, Gate()), node)
    await session.send(worker_service_pb2.SessionResponse.FromString(b"\xfa\x3f\x00"))
    await session.send_audit(3)
    await session.expect_report(3)
