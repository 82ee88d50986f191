"""The dashboard: its addresses, and what happens to every request before and after its page."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from server.api.errors import ApiError
from server.api.validation import DEFAULT_NAMESPACE
from server.store.errors import StoreError
from server.web.calls import Caller, CallFailed, Problem, Services, problem_of
from server.web.doorkeeper import Doorkeeper
from server.web.headers import SecurityHeaders
from server.web.pages.handlers import change_handler, handlers_page
from server.web.pages.job import change_job, job_page
from server.web.pages.jobs import jobs_page
from server.web.pages.overview import overview_page
from server.web.pages.schedules import change_schedule, schedule_page, schedules_page
from server.web.pages.shards import shards_page
from server.web.pages.workers import workers_page
from server.web.render import Assets, Pages
from server.web.session import (
    MAX_TOKEN_CHARS,
    Refused,
    check_host,
    form_token,
    keep_form_token,
    local_path,
    read_form,
    sign_in,
    sign_out,
    token_of,
)
from server.web.visit import Visit

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Page: TypeAlias = Callable[[Visit], Awaitable[Response]]
Change: TypeAlias = Callable[[Visit, dict[str, str]], Awaitable[Response]]


class Dashboard:
    """Pages over `services` for whom `doorkeeper` admits; `node` is shown as the one that answers."""

    def __init__(self, *, node: str, services: Services, doorkeeper: Doorkeeper) -> None:
        self._node = node
        self._services = services
        self._doorkeeper = doorkeeper
        self._assets = Assets()
        self._pages = Pages(self._assets)

    def app(self) -> ASGIApp:
        """Return the application that serves all pages."""
        return SecurityHeaders(Starlette(routes=self._routes()))

    def _routes(self) -> list[BaseRoute]:
        at = "/ns/{namespace}"
        return [
            Route("/", self._start),
            Route("/static/{name}", self._asset),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route(at + "/", self._page(overview_page)),
            Route(at + "/jobs", self._page(jobs_page)),
            Route(at + "/jobs/{job_id:int}", self._page(job_page), methods=["GET"]),
            Route(at + "/jobs/{job_id:int}", self._change(change_job), methods=["POST"]),
            Route(at + "/schedules", self._page(schedules_page)),
            Route(at + "/schedules/{name:path}", self._page(schedule_page), methods=["GET"]),
            Route(at + "/schedules/{name:path}", self._change(change_schedule), methods=["POST"]),
            Route(at + "/handlers", self._page(handlers_page), methods=["GET"]),
            Route(at + "/handlers", self._change(change_handler), methods=["POST"]),
            Route(at + "/workers", self._page(workers_page)),
            Route(at + "/shards", self._page(shards_page)),
        ]

    def _page(self, page: Page) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await self._answer(request, page)

        return endpoint

    def _change(self, change: Change) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            async def page(visit: Visit) -> Response:
                return await change(visit, await read_form(request))

            return await self._answer(request, page)

        return endpoint

    async def _answer(self, request: Request, page: Page) -> Response:
        """Return a page, or what keeps it from being shown."""
        visit = self._visit(request)
        try:
            self._check_host(request)
            response = await page(visit)
        except CallFailed as failed:
            if failed.problem.code == "UNAUTHENTICATED":
                return self._ask_for_token(request)
            response = visit.failure(failed.problem, failed.problem.status)
        except Refused as refused:
            response = visit.failure(Problem(code="REFUSED", message=refused.message), refused.status)
        keep_form_token(request, response, visit.form_token)
        return response

    def _visit(self, request: Request) -> Visit:
        token = token_of(request)
        return Visit(
            request=request,
            caller=Caller(self._doorkeeper, token),
            services=self._services,
            pages=self._pages,
            namespace=request.path_params["namespace"],
            form_token=form_token(request),
            signed_in=bool(token) and not self._doorkeeper.open,
            node=self._node,
        )

    def _check_host(self, request: Request) -> None:
        if self._doorkeeper.open:
            check_host(request)

    async def _start(self, request: Request) -> Response:
        """Send the browser on to the namespace that the visitor begins with, or to the login page."""
        token = token_of(request)
        try:
            home = await self._doorkeeper.home(token)
        except (ApiError, StoreError):
            # The page itself says what is wrong.
            home = DEFAULT_NAMESPACE
        return RedirectResponse("/login" if home is None else f"/ns/{quote(home)}/", status_code=303)

    async def _asset(self, request: Request) -> Response:
        return self._assets.response(request.path_params["name"])

    def _ask_for_token(self, request: Request) -> Response:
        target = request.url.path
        if request.url.query:
            target += f"?{request.url.query}"
        if request.method != "GET":
            target = "/"
        return RedirectResponse(f"/login?next={quote(target)}", status_code=303)

    async def _login_page(self, request: Request) -> Response:
        return self._login_form(request, local_path(request.query_params.get("next", "/")))

    def _login_form(self, request: Request, target: str, error: str = "", status: int = 200) -> Response:
        if self._doorkeeper.open:
            return RedirectResponse(target, status_code=303)
        token = form_token(request)
        values = {"form_token": token, "next": target, "error": error, "node": self._node}
        response = self._pages.page("login.html", values, status=status)
        keep_form_token(request, response, token)
        return response

    async def _login(self, request: Request) -> Response:
        try:
            fields = await read_form(request)
        except Refused as refused:
            return self._login_form(request, "/", refused.message, refused.status)
        target, token = local_path(fields.get("next", "/")), fields.get("token", "").strip()
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isascii() or not token.isprintable():
            return self._login_form(request, target, "Paste a token.", 400)
        try:
            home = await self._doorkeeper.home(token)
        except (ApiError, StoreError) as error:
            return self._login_form(request, target, problem_of(error, "/login").message, 503)
        if home is None:
            return self._login_form(request, target, "This token is not valid: it is unknown, over or revoked.", 401)
        response = RedirectResponse(target, status_code=303)
        sign_in(request, response, token)
        return response

    async def _logout(self, request: Request) -> Response:
        try:
            await read_form(request)
        except Refused as refused:
            return self._login_form(request, "/", refused.message, refused.status)
        response = RedirectResponse("/login", status_code=303)
        sign_out(response)
        return response
