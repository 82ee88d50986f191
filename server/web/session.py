"""What a browser sends along: the token of its session, the forms, and proof that they come from our own pages.

The session is the token itself, in a cookie that no script can read and no other site makes the browser send. So every
node takes every session, and a token that is revoked ends it.
"""

import hmac
import ipaddress
import secrets
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

TOKEN_COOKIE: Final = "shardwheel_token"
FORM_COOKIE: Final = "shardwheel_form"
FORM_FIELD: Final = "form_token"
MAX_FORM_BYTES: Final = 64 * 1024
MAX_FORM_FIELDS: Final = 50
MAX_TOKEN_CHARS: Final = 4096


class Refused(Exception):
    """A request that no page of ours makes; `status` is the HTTP status that answers it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def token_of(request: Request) -> str:
    """Return the token of the session, empty if there is none."""
    return request.cookies.get(TOKEN_COOKIE, "")


def sign_in(request: Request, response: Response, token: str) -> None:
    """Begin a session, which ends with the browser."""
    _set_cookie(request, response, TOKEN_COOKIE, token)


def sign_out(response: Response) -> None:
    """End the session."""
    response.delete_cookie(TOKEN_COOKIE, path="/")


def form_token(request: Request) -> str:
    """Return the secret of this browser that every form of ours carries; a new one if it has none."""
    return request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)


def keep_form_token(request: Request, response: Response, token: str) -> None:
    """Have the browser know the secret that the forms of this answer carry."""
    if request.cookies.get(FORM_COOKIE) != token:
        _set_cookie(request, response, FORM_COOKIE, token)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that one of our pages has sent. Raises `Refused` if it came from elsewhere."""
    _check_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "a form has to be sent as application/x-www-form-urlencoded")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_FORM_BYTES:
            raise Refused(413, f"a form takes at most {MAX_FORM_BYTES} bytes")
    try:
        fields = dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError as error:
        raise Refused(400, "the form cannot be read") from error
    known = request.cookies.get(FORM_COOKIE, "")
    if not known or not hmac.compare_digest(known.encode(), fields.pop(FORM_FIELD, "").encode()):
        raise Refused(403, "the form does not belong to this browser's session: load the page anew and send it again")
    return fields


def check_host(request: Request) -> None:
    """Refuse names that anybody can point at this machine. Raises `Refused`.

    Where everybody may do everything, only the reach of the port protects it; a page of another site whose name is
    made to lead here would otherwise be within that reach.
    """
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        message = "access is open on this node, so it is reached by its address or as localhost only"
        raise Refused(421, message) from None


def local_path(target: str) -> str:
    """Return a path of ours to go on to; the start page for anything that leads elsewhere."""
    parts = urlsplit(target)
    ours = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if ours and target.isprintable() else "/"


def _check_origin(request: Request) -> None:
    fetch_site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = fetch_site not in (None, "same-origin")
    if fetch_site is None and origin is not None:
        # A browser that does not say it itself. The scheme may differ behind a proxy that ends TLS.
        foreign = urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise Refused(403, "the form was sent by a page of another site")


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")
