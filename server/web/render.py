"""From templates to pages. Everything that is put into a template is escaped."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from server.web import figures, format
from server.web.calls import Problem

_ASSETS: Final = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Assets:
    """The files that pages refer to, by name; kept in memory. Their addresses change with their content."""

    def __init__(self) -> None:
        folder = files("server.web") / "static"
        self._files = {name: (folder / name).read_bytes() for name in _ASSETS}
        self._versions = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in self._files.items()}

    def url(self, name: str) -> str:
        """Return the address of a file."""
        return f"/static/{name}?v={self._versions[name]}"

    def response(self, name: str) -> Response:
        """Return a file, or 404. A browser keeps it for good."""
        if name not in self._files:
            return Response("not found\n", status_code=404, media_type="text/plain")
        headers = {"content-type": _ASSETS[name], "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], headers=headers)


class Pages:
    """Renders templates."""

    def __init__(self, assets: Assets) -> None:
        environment = Environment(
            loader=PackageLoader("server.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "moment": format.moment,
            "iso": format.iso,
            "relative": format.relative,
            "span": format.span,
            "until": format.until,
            "first_line": format.first_line,
            "count": format.count,
            "rate": format.rate,
            "state": format.state_name,
            "outcome": format.outcome_name,
        }
        environment.globals |= {"asset": assets.url, "line": figures.line, "area": figures.area}
        environment.tests |= {"problem": lambda value: isinstance(value, Problem)}
        self._environment = environment

    def page(self, template: str, values: Mapping[str, Any], *, status: int = 200) -> Response:
        """Return a rendered page. The templates know the present as `now`."""
        text = self._environment.get_template(template).render(now=datetime.now(UTC), **values)
        return Response(text, status_code=status, media_type="text/html; charset=utf-8")
