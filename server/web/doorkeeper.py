"""Who may see and do what in the dashboard: by the tokens and rules of the gRPC API."""

from typing import Protocol

from google.protobuf.message import Message

from server.access.gate import Gate, Unknown
from server.api.caller import CALLER
from server.api.doorkeeper import unauthenticated, visit
from server.api.validation import DEFAULT_NAMESPACE
from server.domain.access import EVERYWHERE, Right


class Doorkeeper(Protocol):
    """Knows the tokens. The rules are those of the gRPC API, by the full name of a method as in
    "/shardwheel.v1.JobService/GetJob"."""

    @property
    def open(self) -> bool:
        """Whether everybody may do everything, so that nobody is asked for a token."""

    async def home(self, token: str) -> str | None:
        """Return the namespace that the bearer of a token (empty: none) begins with; None if the token is not valid.

        Raises an error of the store if that cannot be known at present.
        """

    async def admit(self, token: str, method: str, request: Message) -> None:
        """Return if the bearer of the token (empty: none) may call a method with this request.

        Raises an `ApiError`, UNAUTHENTICATED or PERMISSION_DENIED, if not.
        """


class TokenDoor:
    """Admits whom the gate knows, to what the rules of the API let it do."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return self._gate.open

    async def home(self, token: str) -> str | None:
        """Return the first namespace of which the bearer may see something, or the default one."""
        try:
            principal = await self._gate.principal(_header(token))
        except Unknown:
            return None
        if principal.may(Right.READ, DEFAULT_NAMESPACE):
            return DEFAULT_NAMESPACE
        readable = [one.namespace for one in principal.scopes if one.right in (Right.READ, Right.ADMIN)]
        return min((name for name in readable if name != EVERYWHERE), default=DEFAULT_NAMESPACE)

    async def admit(self, token: str, method: str, request: Message) -> None:
        """Return if the bearer may call a method with this request, and note who calls; else raise an `ApiError`."""
        try:
            principal = await self._gate.principal(_header(token))
        except Unknown as error:
            raise unauthenticated(error) from error
        CALLER.set(principal)
        visit(method, principal).check(request)


def _header(token: str) -> str | None:
    return f"Bearer {token}" if token else None
