"""Credentials of clients and workers, and keys of nodes. Of secrets only the hashes get here."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from server.domain.access import NODE_KEY_LIFE, Credential, CredentialKind, NodeKey, Scope, parse_scopes
from server.store.arrays import TextArray
from server.store.database import Database, Row, single_connection
from server.store.errors import Refused
from server.store.insert import milliseconds

MAX_LIVE: Final = 10_000
"""Credentials that are not revoked."""

_UNIQUE_VIOLATION: Final = "23505"
_COLUMNS: Final = "id, name, kind, digest, subject, scopes, created_by, created_at, expires_at, revoked_at, changed_at"

READ_CLOCK: Final = "SELECT now(), EXISTS (SELECT FROM tokens)"
READ_LIVE: Final = "SELECT " + _COLUMNS + " FROM tokens WHERE revoked_at IS NULL ORDER BY id"
READ_CHANGED: Final = "SELECT " + _COLUMNS + " FROM tokens WHERE changed_at >= %s ORDER BY changed_at"
READ_NODE_KEYS: Final = "SELECT node, digest, changed_at FROM node_keys WHERE changed_at >= %s"
LIST: Final = "SELECT " + _COLUMNS + " FROM tokens WHERE revoked_at IS NULL ORDER BY name, id LIMIT %s"

CREATE: Final = (
    "INSERT INTO tokens (name, kind, digest, subject, scopes, created_by, expires_at)"
    " SELECT %s::text, %s::int2, %s::bytea, %s::text, %s::text[], %s::text, now() + %s::int8 * interval '1 millisecond'"
    " WHERE (SELECT count(*) FROM tokens WHERE revoked_at IS NULL) < %s::int8"
    " RETURNING " + _COLUMNS
)
REVOKE: Final = (
    "UPDATE tokens SET revoked_at = now(), changed_at = GREATEST(now(), changed_at + interval '1 microsecond')"
    " WHERE id = %s AND revoked_at IS NULL RETURNING " + _COLUMNS
)
BY_DIGEST: Final = "SELECT " + _COLUMNS + " FROM tokens WHERE digest = %s"

PUT_NODE_KEY: Final = """
INSERT INTO node_keys AS k (node, digest) VALUES (%s, %s)
ON CONFLICT (digest) DO UPDATE SET changed_at = GREATEST(now(), k.changed_at + interval '1 microsecond')
"""
FORGET_NODE_KEYS: Final = "DELETE FROM node_keys WHERE changed_at < now() - %s::int8 * interval '1 millisecond'"


class SubjectTaken(Exception):
    """Certificates of this name have rights already."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"certificates of {subject!r} have rights already; revoke these first")
        self.subject = subject


class TooManyCredentials(Exception):
    """There are as many credentials as are allowed."""

    def __init__(self) -> None:
        super().__init__(f"there are {MAX_LIVE} tokens already; revoke some first")
        self.limit = MAX_LIVE


class UnknownCredential(LookupError):
    """There is no credential of this id that could be revoked."""

    def __init__(self, credential_id: int) -> None:
        super().__init__(f"there is no token {credential_id}, or it is revoked already")
        self.credential_id = credential_id


class RevokedToken(Exception):
    """The token was revoked."""

    def __init__(self) -> None:
        super().__init__("the token was revoked")


async def changes(database: Database, since: datetime | None) -> tuple[datetime, bool, list[Credential], list[NodeKey]]:
    """Return the clock, whether there has ever been a credential, and what has changed since; see `ReadChanges`."""
    [(now, ever)] = await database.run(READ_CLOCK, api=True)
    if since is None:
        rows = await database.run(READ_LIVE, api=True)
    else:
        rows = await database.run(READ_CHANGED, (since,), api=True)
    keys = await database.run(READ_NODE_KEYS, (since or now - NODE_KEY_LIFE,), api=True)
    return now, ever, [_credential(row) for row in rows], [NodeKey(*row) for row in keys]


async def create(
    database: Database,
    name: str,
    scopes: Sequence[Scope],
    *,
    digest: bytes | None = None,
    subject: str | None = None,
    created_by: str = "",
    lifetime: timedelta | None = None,
) -> Credential:
    """Store a credential: a token's `digest`, or the `subject` of a certificate.

    Raises `SubjectTaken`, `TooManyCredentials`.
    """
    kind = CredentialKind.TOKEN if subject is None else CredentialKind.CERTIFICATE
    texts = TextArray([str(scope) for scope in scopes])
    params = (name, int(kind), digest, subject, texts, created_by, milliseconds(lifetime), MAX_LIVE)
    try:
        rows = await database.run(CREATE, params, api=True)
    except Refused as error:
        if error.sqlstate != _UNIQUE_VIOLATION or subject is None:
            raise
        raise SubjectTaken(subject) from error
    if not rows:
        raise TooManyCredentials
    return _credential(rows[0])


async def revoke(database: Database, credential_id: int) -> Credential:
    """Revoke a credential for good. Raises `UnknownCredential`."""
    rows = await database.run(REVOKE, (credential_id,), api=True)
    if not rows:
        raise UnknownCredential(credential_id)
    return _credential(rows[0])


async def list_live(database: Database) -> list[Credential]:
    """Return the credentials that are not revoked, by name."""
    return [_credential(row) for row in await database.run(LIST, (MAX_LIVE,), api=True)]


async def put_node_key(database: Database, node: str, digest: bytes) -> None:
    """Make the key of a node known, or known for longer. Keys of nodes that are long gone are forgotten."""
    await database.run(PUT_NODE_KEY, (node, digest), api=True)
    await database.run(FORGET_NODE_KEYS, (milliseconds(NODE_KEY_LIFE),), api=True)


async def ensure(dsn: str, digest: bytes, scopes: Sequence[Scope], *, name: str, created_by: str) -> bool:
    """Store a token unless it is stored already; return whether it was not. Raises `RevokedToken` if it was revoked."""
    async with single_connection(dsn) as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('shardwheel tokens'))")
        cursor = connection.cursor(binary=True)
        found = await (await cursor.execute(BY_DIGEST, (digest,))).fetchone()
        if found is not None:
            if _credential(found).revoked_at is not None:
                raise RevokedToken
            return False
        texts = TextArray([str(scope) for scope in scopes])
        kind = int(CredentialKind.TOKEN)
        await cursor.execute(CREATE, (name, kind, digest, None, texts, created_by, None, MAX_LIVE))
        return True


def _credential(row: Row) -> Credential:
    credential_id, name, kind, digest, subject, scopes, created_by, created_at, expires_at, revoked_at, changed_at = row
    return Credential(
        credential_id=credential_id,
        name=name,
        kind=CredentialKind(kind),
        digest=digest,
        subject=subject,
        scopes=parse_scopes(scopes),
        created_by=created_by,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        changed_at=changed_at,
    )
