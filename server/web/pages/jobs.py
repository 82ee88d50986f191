"""The list of jobs."""

from starlette.responses import Response

from server.web.calls import Problem
from server.web.pages.job_query import STATES, JobQuery, parse_query, request_of
from server.web.visit import Visit
from shardwheel.v1.admin_service_pb2 import ListHandlersRequest
from shardwheel.v1.job_service_pb2 import ListJobsResponse
from shardwheel.v1.schedule_service_pb2 import GetScheduleRequest

#: Where the API's fields are found in the form.
_FIELDS = {"created_from": "from", "created_before": "before", "page_token": "page"}


async def jobs_page(visit: Visit) -> Response:
    """Show one page of the jobs that match the filters, the newest first."""
    if job_id := visit.query("id"):
        if job_id.isascii() and job_id.isdigit():
            return visit.go(f"/jobs/{job_id}")
        errors = {"id": "takes the number of a job"}
    else:
        errors = {}
    query = parse_query(visit.request.query_params.multi_items())
    query.errors.update(errors)
    found = await _found(visit, query)
    handlers = await visit.caller.attempt(visit.services.list_handlers, ListHandlersRequest(namespace=visit.namespace))
    problem = found if isinstance(found, Problem) else None
    values = {
        "query": query,
        "states": STATES,
        "errors": query.errors | _errors(problem),
        "jobs": [] if isinstance(found, Problem) else found.jobs,
        "next_page": "" if isinstance(found, Problem) else found.next_page_token,
        "handlers": [] if isinstance(handlers, Problem) else [one.handler for one in handlers.handlers],
    }
    # An error that belongs to a field is shown there.
    return await visit.page("jobs.html", "jobs", values, problem=None if problem and problem.fields else problem)


async def _found(visit: Visit, query: JobQuery) -> ListJobsResponse | Problem:
    if query.errors:
        return ListJobsResponse()
    schedule_id = 0
    if query.schedule:
        schedule = await visit.caller.attempt(
            visit.services.get_schedule, GetScheduleRequest(namespace=visit.namespace, name=query.schedule)
        )
        if isinstance(schedule, Problem):
            query.errors["schedule"] = schedule.message
            return ListJobsResponse()
        schedule_id = schedule.id
    return await visit.caller.attempt(visit.services.list_jobs, request_of(query, visit.namespace, schedule_id))


def _errors(problem: Problem | None) -> dict[str, str]:
    """Return what the API refused by the fields of the form: a label's error has its key in the name."""
    if problem is None:
        return {}
    return {
        _FIELDS.get(name.partition("[")[0], name.partition("[")[0]): reason for name, reason in problem.fields.items()
    }
