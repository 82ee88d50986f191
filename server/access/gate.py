"""Finds out who calls."""

from collections.abc import Sequence
from typing import Final

from server.access.keyring import Keyring
from server.domain.access import ANYBODY, Credential, Principal

NODE_SCHEME: Final = "Node"
"""Scheme of the header `authorization` between nodes."""


class Unknown(Exception):
    """Nobody is known by what the caller shows; the text says what to show instead."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Gate:
    """Turns what a caller shows into a `Principal`.

    With `closed` a credential is always asked for; else as soon as the database has been given one.
    """

    def __init__(self, keyring: Keyring, *, closed: bool) -> None:
        self.keyring = keyring
        self._closed = closed
        self._holders: dict[int, tuple[Credential, Principal]] = {}
        """Holders by the ids of their credentials: made once, for every call asks for one."""

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return not (self._closed or self.keyring.ever)

    async def principal(self, authorization: str | None, certificate_names: Sequence[str] = ()) -> Principal:
        """Return who sends the header `authorization`, on a connection with a certificate of these names.

        Raises `Unknown`, or what reading the database raises if nothing known to this node fits and the database
        cannot be asked.
        """
        if self.open:
            return ANYBODY
        if authorization:
            return await self._by_header(authorization)
        if certificate_names:
            found = await self.keyring.certificate(certificate_names)
            if found is not None:
                return self._holder("certificate", found)
            text = f"no rights are granted to a certificate of {certificate_names[0]!r}"
            raise Unknown("CERTIFICATE_UNKNOWN", f"{text}: see shardctl tokens create --certificate")
        raise Unknown("CREDENTIAL_MISSING", "a token is needed, as in the header authorization: Bearer TOKEN")

    async def _by_header(self, authorization: str) -> Principal:
        scheme, _, secret = authorization.partition(" ")
        match scheme.lower():
            case "bearer":
                found = await self.keyring.token(secret.strip())
                if found is None:
                    raise Unknown("TOKEN_UNKNOWN", "the token is unknown, expired or revoked")
                return self._holder("token", found)
            case "node":
                node = await self.keyring.node(secret.strip())
                if node is None:
                    raise Unknown("NODE_UNKNOWN", "no node of this cluster has this key")
                return Principal(name=f"node:{node}", node=True)
            case _:
                raise Unknown("CREDENTIAL_MISSING", "the header authorization has to be: Bearer TOKEN")

    def _holder(self, kind: str, credential: Credential) -> Principal:
        known, holder = self._holders.get(credential.credential_id, (None, None))
        if known is not credential or holder is None:
            holder = Principal(
                name=f"{kind}:{credential.name}",
                scopes=frozenset(credential.scopes),
                credential_id=credential.credential_id,
            )
            self._holders[credential.credential_id] = credential, holder
        return holder
