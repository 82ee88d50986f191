"""All credentials of the database, in memory."""

import asyncio
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from server.access.secret import digest_of
from server.domain.access import NODE_KEY_LIFE, Credential, NodeKey

# Unknown secrets make a node ask the database at most this often, however many of them come.
MISS_PAUSE_S: Final = 0.2
# A change carries the time at which its transaction began, so it may become visible this much later than that.
OVERLAP: Final = timedelta(seconds=15)
# Digests are found by their first bytes and then compared in constant time.
_PREFIX_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the database knows of credentials."""

    now: datetime
    """Clock of the database."""
    ever: bool
    """Whether there has ever been a credential, though it may be revoked by now."""
    credentials: list[Credential]
    node_keys: list[NodeKey]


class ReadChanges(Protocol):
    """Reads the credentials that changed at `since` or later; all that are not revoked if it is None."""

    async def __call__(self, since: datetime | None) -> Changes: ...


class Keyring:
    """Finds credentials by what their holders show. For use from one event loop; `refresh` about once a second."""

    def __init__(self, read: ReadChanges) -> None:
        self._read = read
        self._credentials: dict[int, Credential] = {}
        self._node_keys: dict[bytes, NodeKey] = {}
        self._by_prefix: dict[bytes, list[Credential | NodeKey]] = {}
        self._by_subject: dict[str, Credential] = {}
        self._seen_until: datetime | None = None
        self._reading = asyncio.Lock()
        self._read_at = -MISS_PAUSE_S
        self._clock: tuple[datetime, float] | None = None
        self.ever = True
        """Whether the database has ever been given a credential; taken for granted until it has been read."""
        self.on_lost: Callable[[int], None] = lambda credential_id: None
        """Told of each credential that is revoked, expired or has changed, by its id."""

    async def refresh(self) -> None:
        """Drop what has expired, and read what has changed. Raises what the reader raises, and loses nothing then."""
        self._expire()
        async with self._reading:
            await self._refresh()

    async def token(self, secret: str) -> Credential | None:
        """Return the credential whose token this is. One that the database had before this call is found."""
        found = await self._match(secret)
        return found if isinstance(found, Credential) and found.valid(self._now()) else None

    async def node(self, secret: str) -> str | None:
        """Return the name of the node whose secret this is."""
        found = await self._match(secret)
        return found.node if isinstance(found, NodeKey) else None

    async def certificate(self, names: Sequence[str]) -> Credential | None:
        """Return the credential of the first of a certificate's names that has one."""
        found = self._named(names)
        if found is None:
            await self._catch_up()
            found = self._named(names)
        return found if found is not None and found.valid(self._now()) else None

    def take(self, credential: Credential) -> None:
        """Take in a credential that was created or changed through this node."""
        self._drop(credential.credential_id)
        if credential.revoked_at is None:
            self._keep(credential)
        else:
            self.on_lost(credential.credential_id)
        self.ever = True

    async def _match(self, secret: str) -> Credential | NodeKey | None:
        digest = digest_of(secret)
        found = self._holder(digest)
        if found is None:
            await self._catch_up()
            found = self._holder(digest)
        return found

    def _holder(self, digest: bytes) -> Credential | NodeKey | None:
        for one in self._by_prefix.get(digest[:_PREFIX_BYTES], ()):
            assert one.digest is not None
            if hmac.compare_digest(one.digest, digest):
                return one
        return None

    def _named(self, names: Sequence[str]) -> Credential | None:
        return next((found for name in names if (found := self._by_subject.get(name)) is not None), None)

    async def _catch_up(self) -> None:
        """See to it that everything is known which the database had when this was called."""
        asked_at = time.monotonic()
        async with self._reading:
            if self._read_at < asked_at:
                await asyncio.sleep(max(0.0, self._read_at + MISS_PAUSE_S - time.monotonic()))
                await self._refresh()

    async def _refresh(self) -> None:
        self._read_at = time.monotonic()
        since = None if self._seen_until is None else self._seen_until - OVERLAP
        changes = await self._read(since)
        self._clock = (changes.now, time.monotonic())
        self.ever = changes.ever
        for key in changes.node_keys:
            self._take_node(key)
        for credential in changes.credentials:
            known = self._credentials.get(credential.credential_id)
            if known is None or known.changed_at < credential.changed_at:
                self.take(credential)
        self._seen_until = changes.now
        for key in [one for one in self._node_keys.values() if one.changed_at < changes.now - NODE_KEY_LIFE]:
            self._forget_digest(self._node_keys.pop(key.digest))
        self._expire()

    def _expire(self) -> None:
        now = self._now()
        for credential in [one for one in self._credentials.values() if not one.valid(now)]:
            self._drop(credential.credential_id)
            self.on_lost(credential.credential_id)

    def _take_node(self, key: NodeKey) -> None:
        known = self._node_keys.get(key.digest)
        if known is not None:
            self._forget_digest(known)
        self._node_keys[key.digest] = key
        self._by_prefix.setdefault(key.digest[:_PREFIX_BYTES], []).append(key)

    def _keep(self, credential: Credential) -> None:
        self._credentials[credential.credential_id] = credential
        if credential.digest is not None:
            self._by_prefix.setdefault(credential.digest[:_PREFIX_BYTES], []).append(credential)
        if credential.subject is not None:
            self._by_subject[credential.subject] = credential

    def _drop(self, credential_id: int) -> None:
        known = self._credentials.pop(credential_id, None)
        if known is None:
            return
        self._forget_digest(known)
        if known.subject is not None and self._by_subject.get(known.subject) is known:
            del self._by_subject[known.subject]

    def _forget_digest(self, one: Credential | NodeKey) -> None:
        if one.digest is None:
            return
        prefix = one.digest[:_PREFIX_BYTES]
        left = [other for other in self._by_prefix.get(prefix, ()) if other is not one]
        if left:
            self._by_prefix[prefix] = left
        else:
            self._by_prefix.pop(prefix, None)

    def _now(self) -> datetime:
        """The database's clock, as far as this node can tell."""
        if self._clock is None:
            return datetime.now(UTC)
        now, read_at = self._clock
        return now + timedelta(seconds=time.monotonic() - read_at)
