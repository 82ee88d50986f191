"""The shard map: which node owns which shard, and what moves."""

from typing import Final

from starlette.responses import Response

from server.web.calls import Problem
from server.web.format import ranges
from server.web.visit import Visit
from shardwheel.v1.admin_service_pb2 import GetStatusRequest, GetStatusResponse

#: So many nodes have a colour of their own; a further one shares that of an earlier one.
COLOURS: Final = 8


async def shards_page(visit: Visit) -> Response:
    """Show all shards with their owners."""
    status = await visit.caller.attempt(visit.services.get_status, GetStatusRequest())
    if isinstance(status, Problem):
        return await visit.page("shards.html", "shards", {"status": None}, problem=status)
    values = {"status": status, "colours": colours(status), "owned": owned(status)}
    return await visit.page("shards.html", "shards", values)


def colours(status: GetStatusResponse) -> dict[str, int]:
    """Return the number of each node's colour, by name, for as many colours as there are."""
    return {one.node: number % COLOURS for number, one in enumerate(status.nodes)}


def owned(status: GetStatusResponse) -> dict[str, str]:
    """Return which shards each owner has, in words."""
    shards: dict[str, list[int]] = {}
    for one in status.shards:
        if one.owner:
            shards.setdefault(one.owner, []).append(one.shard)
    return {owner: ranges(numbers) for owner, numbers in shards.items()}
