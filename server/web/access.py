"""Who may read a page that programs read, by the same tokens as on the gRPC port."""

import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.access.gate import Gate, Unknown
from server.domain.access import EVERYWHERE, Right

log = logging.getLogger(__name__)


async def refused(request: Request, gate: Gate, right: Right) -> Response | None:
    """Return the answer for a caller without a right in the whole cluster; None for one that has it."""
    try:
        principal = await gate.principal(request.headers.get("authorization"))
    except Unknown as error:
        return _refusal(401, error.reason, str(error))
    except Exception as error:
        log.warning("a caller cannot be checked", extra={"error": str(error)})
        return _refusal(503, "DATABASE_UNAVAILABLE", "who calls cannot be checked at present; try again")
    if principal.may(right, EVERYWHERE):
        return None
    return _refusal(403, "RIGHT_MISSING", f"{principal.name} has no right to {right} in the whole cluster")


def _refusal(status: int, reason: str, message: str) -> Response:
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"reason": reason, "message": message}, status_code=status, headers=headers)
