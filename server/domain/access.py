"""Who may do what: rights in namespaces, and the credentials that carry them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from server.domain.errors import InvalidInput

EVERYWHERE: Final = "*"
"""Instead of a namespace: all of them, and the cluster itself."""
MAX_SCOPES: Final = 100
NODE_KEY_LIFE: Final = timedelta(days=2)
"""The key of a node is forgotten so long after the node has written it last."""

_NAMESPACE: Final = re.compile(r"\*|[a-z0-9-]{1,63}")


class Right(StrEnum):
    """What may be done in a namespace."""

    SUBMIT = "submit"
    """Submit, cancel and retry jobs; define schedules."""
    WORK = "work"
    """Run jobs as a worker."""
    READ = "read"
    """See jobs, schedules, handlers and workers, payloads and results included."""
    ADMIN = "admin"
    """Everything."""


class Scope(NamedTuple):
    """One right in one namespace, or `EVERYWHERE`. Written as in "billing:submit"."""

    namespace: str
    right: Right

    def __str__(self) -> str:
        return f"{self.namespace}:{self.right}"


def parse_scopes(texts: Iterable[str], field: str = "scopes") -> tuple[Scope, ...]:
    """Return the scopes that texts such as "billing:submit,read" stand for, each once.

    Raises `InvalidInput` that names `field`.
    """
    found: dict[Scope, None] = {}
    for text in texts:
        namespace, _, rights = text.partition(":")
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidInput(field, text, 'has to be NAMESPACE:RIGHT, as in "billing:submit"; "*" is every namespace')
        for right in rights.split(","):
            if right not in tuple(Right):
                raise InvalidInput(field, text, f"the right has to be one of {', '.join(Right)}")
            found[Scope(namespace, Right(right))] = None
    if not 1 <= len(found) <= MAX_SCOPES:
        raise InvalidInput(field, f"{len(found)} scopes", f"takes 1 to {MAX_SCOPES}")
    return tuple(found)


class CredentialKind(IntEnum):
    """How whoever calls proves who it is."""

    TOKEN = 1
    """By a secret that it sends."""
    CERTIFICATE = 2
    """By a client certificate that carries the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What somebody may do who proves to be its holder."""

    credential_id: int
    name: str
    """Who holds it. One holder may have several, as while one replaces another."""
    kind: CredentialKind
    digest: bytes | None = None
    """SHA-256 of the token."""
    subject: str | None = None
    """Name in the certificate."""
    scopes: tuple[Scope, ...]
    created_by: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    changed_at: datetime

    def valid(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The SHA-256 of the secret by which a node shows the others that it is one of them; drawn at each start."""

    node: str
    digest: bytes
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever makes a call."""

    name: str = ""
    """As in "token:ci" or "node:node-1"; empty if access is open."""
    scopes: frozenset[Scope] = frozenset()
    node: bool = False
    """Whether it is a node of this cluster, which may do everything."""
    credential_id: int | None = None
    """The credential that it has shown, if it is one of the database's."""

    def may(self, right: Right, namespace: str) -> bool:
        """Whether it has a right in a namespace; `EVERYWHERE` asks for it in the cluster itself."""
        scopes = self.scopes
        return (
            self.node
            or (namespace, right) in scopes
            or (EVERYWHERE, right) in scopes
            or (namespace, Right.ADMIN) in scopes
            or (EVERYWHERE, Right.ADMIN) in scopes
        )


ANYBODY: Final = Principal(node=True)
"""Whoever calls while access is open."""
