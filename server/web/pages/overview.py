"""The overview: how much runs, how late, what fails, and who does the work."""

import asyncio

from starlette.responses import Response

from server.web.calls import Problem
from server.web.figures import figures
from server.web.visit import Visit
from shardwheel.v1.admin_service_pb2 import GetActivityRequest, GetStatusRequest
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import ListJobsRequest

LATEST_FAILURES = 8


async def overview_page(visit: Visit) -> Response:
    """Show the cluster, and the latest failures of the namespace."""
    services = visit.services
    failures = ListJobsRequest(namespace=visit.namespace, states=[Job.FAILED], page_size=LATEST_FAILURES)
    status, activity, failed = await asyncio.gather(
        visit.caller.attempt(services.get_status, GetStatusRequest()),
        visit.caller.attempt(services.get_activity, GetActivityRequest()),
        visit.caller.attempt(services.list_jobs, failures),
    )
    values = {
        "status": status,
        "activity": activity,
        "figures": None if isinstance(activity, Problem) else figures(activity),
        "failed": failed,
    }
    return await visit.page("overview.html", "overview", values)
