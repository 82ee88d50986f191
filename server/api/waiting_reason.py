"""Why a pending job does not run."""

from server.domain.handler import HandlerView
from server.domain.job import JobState
from server.store.jobs_read import JobView
from shardwheel.v1.job_pb2 import Job


def waiting_reason(view: JobView) -> Job.WaitingReason.ValueType | None:
    """Return the first reason that holds, from the job's own to the cluster's; None if it lies with the workers.

    The job is not due; it waits behind its key; someone paused the handler; nobody looks after the shard.
    """
    job = view.job
    if job.state is JobState.PARKED:
        return Job.QUEUED_BEHIND_KEY
    if job.state is not JobState.PENDING:
        return Job.WAITING_REASON_UNSPECIFIED
    if job.due_at > view.now:
        return Job.BACKING_OFF if job.claim > 0 else Job.NOT_DUE
    if view.handler_paused:
        return Job.HANDLER_PAUSED
    if not view.shard_owned:
        return Job.SHARD_WITHOUT_OWNER
    return None


def workers_reason(handler: HandlerView) -> Job.WaitingReason.ValueType:
    """Return the reason that lies with the workers of the shard's owner: there is none, or none has room.

    Jobs that are published wait for nobody but the broker.
    """
    if handler.published:
        return Job.WAITING_REASON_UNSPECIFIED if handler.free > 0 else Job.QUEUE_CLOSED
    if handler.workers == 0:
        return Job.NO_WORKER
    return Job.WAITING_REASON_UNSPECIFIED if handler.free > 0 else Job.NO_FREE_SLOT
