"""Creating, listing and revoking tokens: the part of AdminService that gives rights."""

import re
from typing import Final

from server.access.keyring import Keyring
from server.access.secret import digest_of, draw
from server.api.caller import CALLER
from server.api.convert import span, timestamp
from server.api.errors import AlreadyExists, Exhausted, NotFound
from server.api.validation import Problems, check_span
from server.domain.access import Credential, Scope, parse_scopes
from server.domain.errors import InvalidInput
from server.store import tokens
from server.store.database import Database
from shardwheel.v1 import admin_service_pb2 as pb

_HOLDER: Final = re.compile(r"[A-Za-z0-9._/@-]{1,100}")
_CERTIFICATE: Final = re.compile(r"[\x20-\x7e]{1,200}")


class TokenAdmin:
    """Carries out the calls. This node knows of the change at once, the others within about a second."""

    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring

    async def create(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        """Create a token or the rights of a certificate."""
        scopes = _checked(request)
        secret = "" if request.certificate else draw()
        try:
            created = await tokens.create(
                self._database,
                request.holder,
                scopes,
                digest=digest_of(secret) if secret else None,
                subject=request.certificate or None,
                created_by=CALLER.get().name,
                lifetime=span(request.lifetime) if request.HasField("lifetime") else None,
            )
        except tokens.SubjectTaken as error:
            raise AlreadyExists("CERTIFICATE_EXISTS", str(error), {"certificate": error.subject}) from error
        except tokens.TooManyCredentials as error:
            raise Exhausted("LIMIT_REACHED", str(error), {"limit": str(error.limit)}) from error
        self._keyring.take(created)
        return pb.CreateTokenResponse(token=_message(created), secret=secret)

    async def list(self) -> pb.ListTokensResponse:
        """List the tokens that are not revoked."""
        return pb.ListTokensResponse(tokens=[_message(one) for one in await tokens.list_live(self._database)])

    async def revoke(self, request: pb.RevokeTokenRequest) -> pb.Token:
        """Revoke a token."""
        problems = Problems()
        if request.id <= 0:
            problems.add("id", request.id, "has to be the id of a token, as ListTokens shows it")
        problems.check()
        try:
            revoked = await tokens.revoke(self._database, request.id)
        except tokens.UnknownCredential as error:
            raise NotFound("TOKEN_NOT_FOUND", str(error), {"id": str(error.credential_id)}) from error
        self._keyring.take(revoked)
        return _message(revoked)


def _checked(request: pb.CreateTokenRequest) -> tuple[Scope, ...]:
    problems = Problems()
    if not _HOLDER.fullmatch(request.holder):
        reason = "takes letters, digits and '._/@-', 1 to 100 characters" if request.holder else "is required"
        problems.add("holder", request.holder, reason)
    if request.certificate and not _CERTIFICATE.fullmatch(request.certificate):
        problems.add("certificate", request.certificate, "takes 1 to 200 printable ASCII characters")
    if request.HasField("lifetime"):
        check_span(problems, "lifetime", request.lifetime, positive=True)
    scopes: tuple[Scope, ...] = ()
    try:
        scopes = parse_scopes(request.scopes)
    except InvalidInput as error:
        problems.found.append(error)
    problems.check()
    return scopes


def _message(credential: Credential) -> pb.Token:
    return pb.Token(
        id=credential.credential_id,
        holder=credential.name,
        scopes=[str(scope) for scope in credential.scopes],
        certificate=credential.subject or "",
        created_by=credential.created_by,
        created_at=timestamp(credential.created_at),
        expires_at=timestamp(credential.expires_at) if credential.expires_at else None,
        revoked_at=timestamp(credential.revoked_at) if credential.revoked_at else None,
    )
