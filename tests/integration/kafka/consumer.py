"""A worker that takes published jobs by calls, one step at a time, as a test tells it to."""

from collections.abc import Sequence

import grpc

from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.kafka import Published
from tests.support.raw_worker import RawWorker

_ACKS = pb.ResultAck


class Caller:
    """The calls of a worker that has a session, to any node."""

    def __init__(self, worker: RawWorker, address: str | None = None) -> None:
        self._worker = worker
        self._address = address or worker.address

    async def start(self, messages: Sequence[Published], *, with_payload: bool = False) -> list[pb.Assignment]:
        """Start the attempts of messages; return those that are the worker's now, which then knows of them."""
        request = pb.StartAttemptsRequest(
            worker=self._worker.name,
            incarnation=self._worker.incarnation,
            attempts=[
                pb.AttemptToStart(attempt=pb.AttemptRef(job_id=one.job_id, claim=one.claim), with_payload=with_payload)
                for one in messages
            ],
        )
        held = {(one.job_id, one.claim): pb.Assignment(job_id=one.job_id, claim=one.claim) for one in messages}
        self._worker.running |= held
        async with self._channel() as channel:
            started = list((await WorkerServiceStub(channel).StartAttempts(request, timeout=10)).started)
        for key in held.keys() - {(one.job_id, one.claim) for one in started}:
            del self._worker.running[key]
        return started

    async def finish(self, jobs: Sequence[pb.Assignment], **outcome: object) -> "list[pb.ResultAck.Status.ValueType]":
        """Report one outcome of several attempts; return their fates, in the same order."""
        result = pb.Result(**(outcome or {"completed": pb.Completed(result=b"done")}))  # type: ignore[arg-type]
        results = []
        for job in jobs:
            one = pb.Result(attempt=pb.AttemptRef(job_id=job.job_id, claim=job.claim))
            one.MergeFrom(result)
            results.append(one)
        request = pb.FinishAttemptsRequest(
            worker=self._worker.name, incarnation=self._worker.incarnation, results=results
        )
        async with self._channel() as channel:
            acks = (await WorkerServiceStub(channel).FinishAttempts(request, timeout=10)).acks
        for job in jobs:
            self._worker.running.pop((job.job_id, job.claim), None)
        fates = {(one.attempt.job_id, one.attempt.claim): one.status for one in acks}
        return [fates[job.job_id, job.claim] for job in jobs]

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address)
