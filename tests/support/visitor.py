"""A visitor of the dashboard without a browser: keeps cookies, and sends forms as their page has them."""

import asyncio
import html
import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urljoin

FORM_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')
INLINE_TAGS = re.compile(r"</?(?:b|code|small)\b[^>]*>")
TAGS = re.compile(r"<(?:script|style).*?</(?:script|style)>|<[^>]+>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of the HTTP port."""

    status: int
    headers: Mapping[str, str]
    source: str

    @property
    def text(self) -> str:
        """What people read of a page, white space made single."""
        return " ".join(html.unescape(TAGS.sub(" ", INLINE_TAGS.sub("", self.source))).split())

    @property
    def location(self) -> str:
        """Where the browser is sent on to."""
        return self.headers.get("location", "")


class Visitor:
    """Speaks with one address; with TLS if there is a file of authorities."""

    def __init__(self, address: str, ca: Path | None = None) -> None:
        self.address = address
        self._tls = None if ca is None else ssl.create_default_context(cafile=ca)
        self.cookies: dict[str, str] = {}
        self.cookie_lines: list[str] = []
        self._form_token = ""

    async def get(self, path: str, **headers: str) -> Answer:
        """Load a page, following redirects."""
        answer = await self.request("GET", path, headers=headers)
        while answer.location:
            path = urljoin(path, answer.location)
            answer = await self.request("GET", path, headers=headers)
        return answer

    async def send(self, path: str, fields: Mapping[str, str] | None = None, **headers: str) -> Answer:
        """Send a form with the secret of the page that was loaded last; the redirect is not followed."""
        body = urlencode({"form_token": self._form_token, **(fields or {})})
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self.request("POST", path, body=body, headers=kind | headers)

    async def request(self, method: str, path: str, *, body: str = "", headers: Mapping[str, str]) -> Answer:
        """Send a request; underscores in names of headers stand for dashes."""
        cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        sent = {name.replace("_", "-"): value for name, value in (cookie | dict(headers)).items() if value}
        answer, cookies = await asyncio.to_thread(self._exchange, method, path, body, sent)
        self.cookie_lines += cookies
        for line in cookies:
            name, _, rest = line.partition("=")
            value = rest.partition(";")[0].strip('"')
            self.cookies[name] = "" if "max-age=0" in line.lower() else value
        if found := FORM_TOKEN.search(answer.source):
            self._form_token = found[1]
        return answer

    def _exchange(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> tuple[Answer, list[str]]:
        connection = (
            http.client.HTTPConnection(self.address, timeout=20)
            if self._tls is None
            else http.client.HTTPSConnection(self.address, timeout=20, context=self._tls)
        )
        try:
            connection.request(method, path, body=body or None, headers=dict(headers))
            response = connection.getresponse()
            source = response.read().decode()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, source=source), response.headers.get_all(
                "set-cookie", []
            )
        finally:
            connection.close()
