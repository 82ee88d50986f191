"""Handlers: what waits for each and for how long; to be paused and resumed."""

from starlette.responses import Response

from server.web.calls import CallFailed, Problem
from server.web.session import Refused
from server.web.visit import Visit
from shardwheel.v1.admin_service_pb2 import ListHandlersRequest, PauseHandlerRequest, ResumeHandlerRequest


async def handlers_page(visit: Visit, problem: Problem | None = None) -> Response:
    """Show all handlers of the namespace; `problem` is why one could not be changed."""
    found = await visit.caller.attempt(visit.services.list_handlers, ListHandlersRequest(namespace=visit.namespace))
    unknown = isinstance(found, Problem)
    values = {"handlers": [] if isinstance(found, Problem) else found.handlers, "unknown": unknown}
    if isinstance(found, Problem):
        problem = problem or found
    return await visit.page("handlers.html", "handlers", values, problem=problem)


async def change_handler(visit: Visit, form: dict[str, str]) -> Response:
    """Pause or resume a handler."""
    handler, action = form.get("handler", ""), form.get("action")
    try:
        if action == "pause":
            note = form.get("note", "").strip()
            pause = PauseHandlerRequest(namespace=visit.namespace, handler=handler, note=note)
            await visit.caller.call(visit.services.pause_handler, pause)
        elif action == "resume":
            resume = ResumeHandlerRequest(namespace=visit.namespace, handler=handler)
            await visit.caller.call(visit.services.resume_handler, resume)
        else:
            raise Refused(400, "a handler can be paused or resumed")
    except CallFailed as failed:
        if failed.problem.code == "UNAUTHENTICATED":
            raise
        return await handlers_page(visit, failed.problem)
    return visit.go(f"/handlers?done={action}")
