"""Workers: who is connected, for which handlers, and how busy."""

from starlette.responses import Response

from server.web.calls import Problem
from server.web.visit import Visit
from shardwheel.v1.admin_service_pb2 import ListWorkersRequest


async def workers_page(visit: Visit) -> Response:
    """Show all live workers of the namespace."""
    found = await visit.caller.attempt(visit.services.list_workers, ListWorkersRequest(namespace=visit.namespace))
    if isinstance(found, Problem):
        return await visit.page("workers.html", "workers", {"workers": [], "unknown": True}, problem=found)
    return await visit.page("workers.html", "workers", {"workers": found.workers, "unknown": False})
