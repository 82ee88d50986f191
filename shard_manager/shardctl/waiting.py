"""Waiting for a job over any time, restarts of nodes included."""

import asyncio
import time
from datetime import timedelta

import grpc

from shard_manager.shardctl.call_error import CallFailedError
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import CommandFailedError
from shard_manager.shardctl.job_view import state_name
from shard_manager.shardctl.output import spinner
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import WaitJobRequest

# 0 would stand for the server's default.
_SHORTEST_WAIT = timedelta(milliseconds=10)
_ONE_WAIT = timedelta(seconds=30)
# A node that restarts, or a balancer that notices late, is back within this.
_PATIENCE = timedelta(seconds=30)
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def wait_for_job(connection: Connection, job_id: int) -> Job:
    """Returns the job once it is final.

    Raises CommandFailedError when --timeout is over, and when the server has been out of reach for 30 s on end.
    """
    limit = connection.settings.timeout
    end = None if limit is None else time.monotonic() + limit.total_seconds()
    job: Job | None = None
    with spinner() as progress:
        task = progress.add_task(f"waiting for job {job_id}")
        while end is None or time.monotonic() < end:
            left = _ONE_WAIT if end is None else min(_ONE_WAIT, timedelta(seconds=end - time.monotonic()))
            left = max(left, _SHORTEST_WAIT)
            response_job, done = await _wait_once(connection, job_id, left)
            if done:
                return response_job
            job = response_job
            progress.update(task, description=f"waiting for job {job_id} ({state_name(job.state)})")
    assert limit is not None
    state = state_name(job.state) if job is not None else "not final"
    raise CommandFailedError(
        f"error: job {job_id} is still {state} after {format_duration(limit)}",
        f"`shardctl jobs get {job_id}` tells why it waits; wait again with a longer --timeout, or none.",
    )


async def _wait_once(connection: Connection, job_id: int, limit: timedelta) -> tuple[Job, bool]:
    """One call, repeated while the server cannot be reached. It may take a little longer than `limit`."""
    request = WaitJobRequest(namespace=connection.settings.namespace, id=job_id)
    request.max_wait.FromTimedelta(limit)
    pause = _FIRST_PAUSE_S
    give_up = time.monotonic() + min(_PATIENCE, limit).total_seconds()
    while True:
        try:
            # The server answers by itself at max_wait; the slack keeps its answer from losing a race.
            response = await connection.call(connection.jobs.WaitJob, request, timeout=limit + timedelta(seconds=2))
            return response.job, response.done
        except CallFailedError as error:
            if error.code not in _PASSING or time.monotonic() + pause >= give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
