"""/healthz and /readyz for everybody, /metrics for whoever may read everything, and behind them the rest."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from server.access.gate import Gate
from server.domain.access import Right
from server.observe.health import HealthView, Report
from server.web.access import refused

#: Called with the Accept header, returns a page of metrics and its content type.
MetricsPage: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]


def probes_app(health: HealthView, metrics: MetricsPage, rest: ASGIApp, gate: Gate) -> Starlette:
    """Return the application. Probes answer 200 or 503 with the checks as JSON; `gate` knows who may read metrics.

    `rest` answers for all other paths, and sees to it itself who may do what there.
    """

    async def healthz(_: Request) -> Response:
        return _answer(health.alive(), "alive")

    async def readyz(_: Request) -> Response:
        return _answer(health.ready(), "ready")

    async def metrics_page(request: Request) -> Response:
        if (refusal := await refused(request, gate, Right.READ)) is not None:
            return refusal
        page, kind = await metrics(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": kind, "cache-control": "no-store"})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics_page),
            Mount("/", app=rest),
        ],
    )


def _answer(report: Report, verdict: str) -> Response:
    return Response(
        orjson.dumps(report.document(verdict), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        status_code=200 if report.ok else 503,
        headers={"content-type": "application/json", "cache-control": "no-store"},
    )
