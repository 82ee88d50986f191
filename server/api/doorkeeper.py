"""Lets calls in: who calls, and whether it has the right that the method takes, where it takes it."""

import logging
from typing import Any, Final, TypeAlias

import grpc.aio

from server.access.certificates import names_in
from server.access.gate import Gate, Unknown
from server.access.rules import RULES, Place, Rule
from server.api.errors import Forbidden, Unauthenticated
from server.api.validation import DEFAULT_NAMESPACE
from server.domain.access import ANYBODY, EVERYWHERE, Principal, Right

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_AUTHORIZATION: Final = "authorization"
_CLOSED: Final = Rule(Place.NODES)


class Visit:
    """One call of a known caller. `check` each of its requests before the service sees it."""

    __slots__ = ("_checked", "_rule", "principal")

    def __init__(self, principal: Principal, rule: Rule) -> None:
        self.principal = principal
        self._rule = rule
        self._checked = ""
        """The namespace that was allowed last."""

    def check(self, request: Any) -> None:
        """Raise `Forbidden` if the caller has no right in the namespace that `request` names."""
        match self._rule.place:
            case Place.NAMESPACE:
                namespace = request.namespace or DEFAULT_NAMESPACE
            case Place.HELLO:
                # What follows the first message names no namespace.
                if self._checked:
                    return
                namespace = request.hello.namespace or DEFAULT_NAMESPACE
            case _:
                return
        if namespace != self._checked:
            require(self.principal, self._rule.right, namespace)
            self._checked = namespace


class Doorkeeper:
    """Asks the gate who calls."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def enter(self, method: str, context: Context) -> Visit:
        """Return the visit of whoever makes a call.

        Raises `Unauthenticated`, `Forbidden`, or what reading the database raises.
        """
        return visit(method, await self._principal(context))

    async def _principal(self, context: Context) -> Principal:
        if self._gate.open:
            return ANYBODY
        header = next((value for key, value in context.invocation_metadata() or () if key == _AUTHORIZATION), None)
        # Asking for the certificate costs more than all the rest, and a token goes before it.
        names = names_in(context.auth_context()) if header is None else ()
        try:
            return await self._gate.principal(None if header is None else str(header), names)
        except Unknown as error:
            raise unauthenticated(error) from error


def visit(method: str, principal: Principal) -> Visit:
    """Return the visit of a known caller of a method; raise `Forbidden` if no request could be allowed."""
    rule = RULES.get(method, _CLOSED)
    if rule.right is Right.ADMIN and rule.place in (Place.CLUSTER, Place.NAMESPACE):
        log.info("admin call", extra={"method": method, "caller": principal.name})
    match rule.place:
        case Place.CLUSTER:
            require(principal, rule.right, EVERYWHERE)
        case Place.NODES if not principal.node:
            raise Forbidden("FOR_NODES_ONLY", f"{principal.name} is no node of this cluster", {"method": method})
        case _:
            pass
    return Visit(principal, rule)


def unauthenticated(error: Unknown) -> Unauthenticated:
    """Return the error of the API for a caller whom nobody knows."""
    return Unauthenticated(error.reason, str(error))


def require(principal: Principal, right: Right, namespace: str) -> None:
    """Raise `Forbidden` if a caller lacks a right in a namespace."""
    if not principal.may(right, namespace):
        where = "the whole cluster" if namespace == EVERYWHERE else f"namespace {namespace!r}"
        message = f"{principal.name} has no right to {right} in {where}"
        raise Forbidden("RIGHT_MISSING", message, {"right": right, "namespace": namespace})
