"""One request for a page, with all that answering it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.web.calls import Caller, Problem, Services
from server.web.render import Pages
from shardwheel.v1.admin_service_pb2 import ListNamespacesRequest

#: Sent by the script that refreshes the live parts of a page, which are all that it takes from the answer.
LIVE_HEADER = "x-live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request, on whose behalf it calls, and for which namespace. `form_token` goes into every form."""

    request: Request
    caller: Caller
    services: Services
    pages: Pages
    namespace: str
    form_token: str
    signed_in: bool
    node: str

    @property
    def root(self) -> str:
        """The path that all pages of the namespace begin with."""
        return f"/ns/{quote(self.namespace)}"

    def query(self, name: str) -> str:
        """Return a parameter of the address, empty if it is not given."""
        return str(self.request.query_params.get(name, "")).strip()

    def go(self, path: str) -> Response:
        """Send the browser on to a page of the namespace, to be loaded with GET."""
        return RedirectResponse(self.root + path, status_code=303)

    async def page(
        self, template: str, section: str, values: Mapping[str, Any], *, problem: Problem | None = None
    ) -> Response:
        """Return a page of a section; `problem` is why what was asked for has not been done, shown on top of it."""
        frame = self._frame(section, await self._namespaces(), problem)
        return self.pages.page(template, {**frame, **values}, status=problem.status if problem else 200)

    def failure(self, problem: Problem, status: int) -> Response:
        """Return a page that says nothing but why there is no other."""
        return self.pages.page("failure.html", self._frame("", [self.namespace], problem), status=status)

    def _frame(self, section: str, namespaces: Sequence[str], problem: Problem | None) -> dict[str, Any]:
        """Return what the frame of every page shows."""
        return {
            "root": self.root,
            "namespace": self.namespace,
            "namespaces": namespaces,
            "section": section,
            "form_token": self.form_token,
            "signed_in": self.signed_in,
            "node": self.node,
            "done": self.query("done"),
            "problem": problem,
        }

    async def _namespaces(self) -> list[str]:
        """Return the namespaces to choose from; only this one if the visitor may not know of others."""
        if LIVE_HEADER in self.request.headers:
            return [self.namespace]
        found = await self.caller.attempt(self.services.list_namespaces, ListNamespacesRequest())
        if isinstance(found, Problem):
            return [self.namespace]
        return [one.namespace for one in found.namespaces]
