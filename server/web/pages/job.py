"""One job: where it stands and why, what it was given, what went wrong; to be retried or cancelled."""

from typing import Final

from starlette.responses import Response

from server.domain.sharding import shard_of_id
from server.web.calls import CallFailed, Problem
from server.web.format import body
from server.web.session import Refused
from server.web.visit import Visit
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import CancelJobRequest, GetJobRequest, RetryJobRequest

MAX_ID: Final = 2**63 - 1
FINAL: Final = (Job.COMPLETED, Job.FAILED, Job.CANCELLED)


async def job_page(visit: Visit, problem: Problem | None = None) -> Response:
    """Show a job; `problem` is why something could not be done with it."""
    job_id = job_id_of(visit)
    job = await visit.caller.call(visit.services.get_job, GetJobRequest(namespace=visit.namespace, id=job_id))
    values = {
        "job": job,
        "shard": shard_of_id(job.id),
        "final": job.state in FINAL,
        "waits": Job.WaitingReason.Name(job.waiting_because) if job.state == Job.PENDING else "",
        "retryable": job.state in (Job.FAILED, Job.CANCELLED) or job.waiting_because == Job.BACKING_OFF,
        "payload": body(job.payload) if job.payload else None,
        "result": body(job.result) if job.result else None,
        "progress": body(job.progress) if job.progress else None,
    }
    return await visit.page("job.html", "jobs", values, problem=problem)


def job_id_of(visit: Visit) -> int:
    """Return the id of the job that the page is of. Raises `Refused` for one that no job can have."""
    job_id: int = visit.request.path_params["job_id"]
    if not 0 < job_id <= MAX_ID:
        raise Refused(404, f"there is no job {str(job_id)[:40]}: ids are positive numbers of 64 bits")
    return job_id


async def change_job(visit: Visit, form: dict[str, str]) -> Response:
    """Retry or cancel a job."""
    job_id = job_id_of(visit)
    action = form.get("action")
    try:
        if action == "retry":
            await visit.caller.call(visit.services.retry_job, RetryJobRequest(namespace=visit.namespace, id=job_id))
        elif action == "cancel":
            request = CancelJobRequest(namespace=visit.namespace, id=job_id, reason=form.get("reason", "").strip())
            await visit.caller.call(visit.services.cancel_job, request)
        else:
            raise Refused(400, "a job can be retried or cancelled")
    except CallFailed as failed:
        if failed.problem.code in ("UNAUTHENTICATED", "NOT_FOUND"):
            raise
        return await job_page(visit, failed.problem)
    return visit.go(f"/jobs/{job_id}?done={action}")
