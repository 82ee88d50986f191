"""Schedules: when each fires next and fired last; to be paused, resumed and triggered."""

import asyncio
from typing import Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from server.web.calls import CallFailed, Problem
from server.web.format import body
from server.web.session import Refused
from server.web.visit import Visit
from shardwheel.v1.job_service_pb2 import ListJobsRequest
from shardwheel.v1.schedule_service_pb2 import (
    GetScheduleRequest,
    ListSchedulesRequest,
    ListSchedulesResponse,
    PauseScheduleRequest,
    PreviewScheduleRequest,
    ResumeScheduleRequest,
    TriggerScheduleRequest,
)

PAGE_SIZE: Final = 50
COMING_FIRINGS: Final = 6
LATEST_JOBS: Final = 10


async def schedules_page(visit: Visit) -> Response:
    """Show one page of the schedules, by name."""
    prefix, handler = visit.query("prefix"), visit.query("handler")
    request = ListSchedulesRequest(
        namespace=visit.namespace,
        name_prefix=prefix,
        handler=handler,
        page_size=PAGE_SIZE,
        page_token=visit.query("page"),
    )
    found = await visit.caller.attempt(visit.services.list_schedules, request)
    problem = found if isinstance(found, Problem) else None
    answer = ListSchedulesResponse() if isinstance(found, Problem) else found
    next_page = ""
    if answer.next_page_token:
        fields = {"prefix": prefix, "handler": handler, "page": answer.next_page_token}
        next_page = urlencode({name: value for name, value in fields.items() if value})
    values = {
        "schedules": answer.schedules,
        "prefix": prefix,
        "handler": handler,
        "filtered": bool(prefix or handler),
        "next_page": next_page,
        "errors": {name.removeprefix("name_"): reason for name, reason in problem.fields.items()} if problem else {},
    }
    return await visit.page(
        "schedules.html", "schedules", values, problem=None if problem and problem.fields else problem
    )


async def schedule_page(visit: Visit, problem: Problem | None = None) -> Response:
    """Show a schedule with its coming firings and its latest jobs; `problem`: what could not be done with it."""
    services = visit.services
    schedule = await visit.caller.call(
        services.get_schedule, GetScheduleRequest(namespace=visit.namespace, name=visit.request.path_params["name"])
    )
    coming, jobs = await asyncio.gather(
        visit.caller.attempt(
            services.preview_schedule, PreviewScheduleRequest(spec=schedule.spec, count=COMING_FIRINGS)
        ),
        visit.caller.attempt(
            services.list_jobs,
            ListJobsRequest(namespace=visit.namespace, schedule_id=schedule.id, page_size=LATEST_JOBS),
        ),
    )
    values = {
        "schedule": schedule,
        "coming": coming,
        "jobs": jobs,
        "payload": body(schedule.spec.job.payload) if schedule.spec.job.payload else None,
    }
    return await visit.page("schedule.html", "schedules", values, problem=problem)


async def change_schedule(visit: Visit, form: dict[str, str]) -> Response:
    """Pause, resume or trigger a schedule; the page of a job that was made comes next."""
    name, action = visit.request.path_params["name"], form.get("action")
    namespace, services, call = visit.namespace, visit.services, visit.caller.call
    try:
        if action == "pause":
            note = form.get("note", "").strip()
            await call(services.pause_schedule, PauseScheduleRequest(namespace=namespace, name=name, note=note))
        elif action == "resume":
            await call(services.resume_schedule, ResumeScheduleRequest(namespace=namespace, name=name))
        elif action == "trigger":
            request = TriggerScheduleRequest(namespace=namespace, name=name)
            made = await call(services.trigger_schedule, request)
            return visit.go(f"/jobs/{made.job.id}?done=trigger")
        else:
            raise Refused(400, "a schedule can be paused, resumed or triggered")
    except CallFailed as failed:
        if failed.problem.code in ("UNAUTHENTICATED", "NOT_FOUND"):
            raise
        return await schedule_page(visit, failed.problem)
    return visit.go(f"/schedules/{quote(name)}?done={action}")
