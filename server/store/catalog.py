"""Namespaces and handlers: their ids, default policies, quotas and pauses.

Names turn into ids on every request, so a node keeps both tables in memory as far as it has seen them. Changes made
through another node arrive with the next `refresh`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from server.domain import quota
from server.domain.dispatch import Dispatch, DispatchMode
from server.domain.policies import NO_POLICIES, Policies, from_document, to_document
from server.domain.quota import NO_QUOTAS, Quotas
from server.store.arrays import JsonbArray, TextArray
from server.store.database import Connection, Database, Row
from server.store.insert import milliseconds

MAX_HANDLERS: Final = 10_000
MAX_NAMESPACES: Final = 10_000
# Rows kept in memory; an entry that was thrown out is read again.
MAX_CACHED: Final = 100_000

# A change carries the time at which its transaction began, so it may become visible this much later than that.
REFRESH_OVERLAP: Final = timedelta(seconds=15)


class UnknownNamespace(LookupError):
    """There is no namespace of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no namespace {name!r}")
        self.name = name


class UnknownHandler(LookupError):
    """The namespace has no handler of this name."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(f"namespace {namespace!r} has no handler {name!r}")
        self.namespace = namespace
        self.name = name


class CatalogFull(Exception):
    """A namespace has as many handlers, or the cluster as many namespaces, as are allowed."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"there are {limit} {what} already, no more are allowed")
        self.what = what
        self.limit = limit


class NamespaceConflict(Exception):
    """The namespace exists with other defaults."""

    def __init__(self, name: str) -> None:
        super().__init__(f"namespace {name!r} exists with other defaults")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A tenant and the default policies of its jobs."""

    namespace_id: int
    name: str
    policies: Policies
    quotas: Quotas = NO_QUOTAS
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler of a namespace. `policies` are the defaults of its latest registration."""

    handler_id: int
    namespace_id: int
    name: str
    policies: Policies = NO_POLICIES
    paused: bool = False
    pause_note: str = ""
    dispatch: Dispatch = field(default_factory=Dispatch)
    changed_at: datetime


_NAMESPACE_COLUMNS: Final = "id, name, defaults, quotas, created_at, changed_at"
_NAMESPACE: Final = "SELECT " + _NAMESPACE_COLUMNS + " FROM namespaces"
READ_NAMESPACE: Final = _NAMESPACE + " WHERE name = %s"
READ_NAMESPACE_BY_ID: Final = _NAMESPACE + " WHERE id = %s"
LIST_NAMESPACES: Final = _NAMESPACE + " ORDER BY name LIMIT %s"
CHANGED_NAMESPACES: Final = _NAMESPACE + " WHERE changed_at > %s ORDER BY changed_at"
CREATE_NAMESPACE: Final = (
    """
INSERT INTO namespaces (name, defaults, quotas) SELECT %s, %s::jsonb, %s::jsonb
WHERE (SELECT count(*) FROM (SELECT FROM namespaces LIMIT %s::int8) n) < %s::int8
ON CONFLICT (name) DO NOTHING
RETURNING """
    + _NAMESPACE_COLUMNS
)
# A quota that is given as null is taken away.
SET_QUOTAS: Final = (
    """
UPDATE namespaces SET quotas = jsonb_strip_nulls(quotas || %s::jsonb),
    changed_at = GREATEST(now(), changed_at + interval '1 microsecond')
WHERE name = %s
RETURNING """
    + _NAMESPACE_COLUMNS
)

_COLUMNS: Final = """id, namespace_id, name, defaults, paused, pause_note, dispatch, queue_timeout_ms, max_unfinished,
    changed_at"""
_HANDLER: Final = "SELECT " + _COLUMNS + " FROM handlers"
READ_HANDLER: Final = _HANDLER + " WHERE namespace_id = %s AND name = %s"
READ_HANDLER_BY_ID: Final = _HANDLER + " WHERE id = %s"
LIST_HANDLERS: Final = _HANDLER + " WHERE namespace_id = %s ORDER BY name LIMIT %s"
CHANGED_HANDLERS: Final = _HANDLER + " WHERE changed_at > %s ORDER BY changed_at"
PUBLISHED_HANDLERS: Final = _HANDLER + " WHERE dispatch = 1 ORDER BY id"
NOW: Final = "SELECT now()"

COUNT_HANDLERS: Final = """
SELECT count(*), count(*) FILTER (WHERE name = ANY(%s::text[])) FROM handlers WHERE namespace_id = %s
"""

# changed_at moves only if something did, for a moved row causes work on all nodes; and it never moves back, though a
# transaction that began earlier may write later.
REGISTER_HANDLERS: Final = """
INSERT INTO handlers AS h (namespace_id, name, defaults)
SELECT %s, w.name, COALESCE(w.defaults, '{}')
FROM unnest(%s::text[], %s::jsonb[]) AS w(name, defaults) ORDER BY w.name
ON CONFLICT (namespace_id, name) DO UPDATE
SET defaults = EXCLUDED.defaults, changed_at = GREATEST(now(), h.changed_at + interval '1 microsecond')
WHERE h.defaults IS DISTINCT FROM EXCLUDED.defaults AND %s::bool
"""
READ_HANDLERS: Final = _HANDLER + " WHERE namespace_id = %s AND name = ANY(%s::text[])"

SET_PAUSED: Final = (
    """
UPDATE handlers SET paused = %s, pause_note = %s, changed_at = GREATEST(now(), changed_at + interval '1 microsecond')
WHERE namespace_id = %s AND name = %s
RETURNING """
    + _COLUMNS
)

SET_DISPATCH: Final = (
    """
UPDATE handlers SET dispatch = %s, queue_timeout_ms = COALESCE(%s::int8, queue_timeout_ms),
    max_unfinished = COALESCE(%s::int4, max_unfinished),
    changed_at = GREATEST(now(), changed_at + interval '1 microsecond')
WHERE namespace_id = %s AND name = %s
RETURNING """
    + _COLUMNS
)


class Catalog:
    """Namespaces and handlers by name and id, as this node knows them. For use from one event loop."""

    def __init__(self, database: Database, *, max_handlers: int = MAX_HANDLERS, max_cached: int = MAX_CACHED) -> None:
        self._database = database
        self._max_handlers = max_handlers
        self._max_cached = max_cached
        self._namespaces: dict[str, Namespace] = {}
        self._handlers: dict[tuple[int, str], Handler] = {}
        self._by_id: dict[int, Handler] = {}
        self._seen_until: datetime | None = None

    async def namespace(self, name: str) -> Namespace:
        """Return a namespace; raise `UnknownNamespace`."""
        found = self._namespaces.get(name)
        if found is None:
            rows = await self._database.run(READ_NAMESPACE, (name,), api=True)
            if not rows:
                raise UnknownNamespace(name)
            found = self._keep_namespace(_namespace(rows[0]))
        return found

    async def namespaces(self) -> list[Namespace]:
        """Return all namespaces by name."""
        rows = await self._database.run(LIST_NAMESPACES, (MAX_NAMESPACES,), api=True)
        return [_namespace(row) for row in rows]

    async def create_namespace(self, name: str, policies: Policies, quotas: Quotas = NO_QUOTAS) -> Namespace:
        """Create a namespace, or return the existing one if it has the same defaults, whatever its quotas.

        Raise `NamespaceConflict` if it has others, `CatalogFull` if there are too many.
        """
        limits = quota.to_document(quotas)
        params = (name, to_document(policies).decode(), limits, MAX_NAMESPACES, MAX_NAMESPACES)
        rows = await self._database.run(CREATE_NAMESPACE, params, api=True)
        if rows:
            return self._keep_namespace(_namespace(rows[0]))
        try:
            existing = await self.namespace(name)
        except UnknownNamespace:
            raise CatalogFull("namespaces", MAX_NAMESPACES) from None
        if existing.policies != from_document(to_document(policies)):
            raise NamespaceConflict(name)
        return existing

    async def set_quotas(self, name: str, changes: Mapping[str, float | None]) -> Namespace:
        """Change quotas of a namespace by name; None takes one away. Raise `UnknownNamespace`."""
        rows = await self._database.run(SET_QUOTAS, (json.dumps(changes), name), api=True)
        if not rows:
            raise UnknownNamespace(name)
        return self._keep_namespace(_namespace(rows[0]))

    async def find_handler(self, namespace_id: int, name: str) -> Handler | None:
        """Return a handler if it exists."""
        found = self._handlers.get((namespace_id, name))
        if found is None:
            rows = await self._database.run(READ_HANDLER, (namespace_id, name), api=True)
            found = self._keep(_handler(rows[0])) if rows else None
        return found

    async def handler(self, namespace_id: int, name: str) -> Handler:
        """Return a handler, created if there was none; raise `CatalogFull`."""
        return (await self.handlers_named(namespace_id, [name]))[name]

    async def handlers_named(self, namespace_id: int, names: list[str]) -> dict[str, Handler]:
        """Return handlers by name, created as far as they did not exist; raise `CatalogFull`."""
        known = {name: self._handlers.get((namespace_id, name)) for name in names}
        missing = {name: NO_POLICIES for name, handler in known.items() if handler is None}
        stored = await self._store(namespace_id, missing, update=False) if missing else {}
        return {name: handler or stored[name] for name, handler in known.items()}

    async def register_handlers(self, namespace_id: int, defaults: Mapping[str, Policies]) -> dict[str, Handler]:
        """Store the defaults that a worker's registration gives; raise `CatalogFull`."""
        return await self._store(namespace_id, defaults, update=True) if defaults else {}

    async def handler_by_id(self, handler_id: int) -> Handler | None:
        """Return a handler by its id."""
        found = self._by_id.get(handler_id)
        if found is None:
            rows = await self._database.run(READ_HANDLER_BY_ID, (handler_id,), api=True)
            found = self._keep(_handler(rows[0])) if rows else None
        return found

    def known_name(self, handler_id: int) -> str:
        """Return the name of a handler that this node has met, its number of any other."""
        found = self._by_id.get(handler_id)
        return found.name if found is not None else str(handler_id)

    async def list_handlers(self, namespace_id: int) -> list[Handler]:
        """Return the handlers of a namespace by name."""
        rows = await self._database.run(LIST_HANDLERS, (namespace_id, self._max_handlers), api=True)
        return [self._keep(_handler(row)) for row in rows]

    async def set_paused(self, namespace: Namespace, name: str, *, paused: bool, note: str = "") -> Handler:
        """Pause or resume a handler; raise `UnknownHandler`."""
        rows = await self._database.run(SET_PAUSED, (paused, note, namespace.namespace_id, name), api=True)
        if not rows:
            raise UnknownHandler(namespace.name, name)
        return self._keep(_handler(rows[0]))

    async def set_dispatch(
        self,
        namespace: Namespace,
        name: str,
        mode: DispatchMode,
        *,
        queue_timeout: timedelta | None,
        max_unfinished: int | None,
    ) -> Handler:
        """Say how a handler's jobs are handed out; None leaves a setting as it is. The handler is created if there was
        none; raise `CatalogFull`."""
        await self.handler(namespace.namespace_id, name)
        params = (int(mode), milliseconds(queue_timeout), max_unfinished, namespace.namespace_id, name)
        [row] = await self._database.run(SET_DISPATCH, params, api=True)
        return self._keep(_handler(row))

    async def published_handlers(self) -> list[Handler]:
        """Return the handlers of all namespaces whose jobs are published."""
        return [self._keep(_handler(row)) for row in await self._database.run(PUBLISHED_HANDLERS, api=True)]

    async def namespace_name(self, namespace_id: int) -> str:
        """Return the name of a namespace that exists."""
        for found in self._namespaces.values():
            if found.namespace_id == namespace_id:
                return found.name
        [row] = await self._database.run(READ_NAMESPACE_BY_ID, (namespace_id,), api=True)
        return self._keep_namespace(_namespace(row)).name

    async def refresh(self) -> list[Handler]:
        """Read what other nodes changed, and return the handlers that this node knew otherwise or not at all.

        To be called about once a second. The first call forgets what was cached before it and returns nothing.
        """
        if self._seen_until is None:
            self._seen_until = (await self._database.run(NOW, api=True))[0][0]
            self._handlers.clear()
            self._by_id.clear()
            self._namespaces.clear()
            return []
        since = self._seen_until - REFRESH_OVERLAP
        for row in await self._database.run(CHANGED_NAMESPACES, (since,), api=True):
            self._keep_namespace(_namespace(row))
        rows = await self._database.run(CHANGED_HANDLERS, (since,), api=True)
        changed = []
        for handler in map(_handler, rows):
            self._seen_until = max(self._seen_until, handler.changed_at)
            known = self._by_id.get(handler.handler_id)
            if known is None or known.changed_at < handler.changed_at:
                changed.append(self._keep(handler))
        return changed

    async def _store(self, namespace_id: int, defaults: Mapping[str, Policies], *, update: bool) -> dict[str, Handler]:
        names = sorted(defaults)
        texts = TextArray(names)
        documents = JsonbArray([to_document(defaults[name]) for name in names])

        async def work(connection: Connection) -> list[Row]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(COUNT_HANDLERS, (texts, namespace_id))
            row = await cursor.fetchone()
            assert row is not None
            if row[0] + len(names) - row[1] > self._max_handlers:
                raise CatalogFull("handlers in the namespace", self._max_handlers)
            await cursor.execute(REGISTER_HANDLERS, (namespace_id, texts, documents, update))
            await cursor.execute(READ_HANDLERS, (namespace_id, texts))
            return await cursor.fetchall()

        rows = await self._database.transact(work)
        return {handler.name: self._keep(handler) for handler in map(_handler, rows)}

    def _keep(self, handler: Handler) -> Handler:
        known = self._by_id.get(handler.handler_id)
        if known is not None and known.changed_at > handler.changed_at:
            return known
        if len(self._by_id) >= self._max_cached:
            dropped = self._by_id.pop(next(iter(self._by_id)))
            del self._handlers[dropped.namespace_id, dropped.name]
        self._by_id[handler.handler_id] = self._handlers[handler.namespace_id, handler.name] = handler
        return handler

    def _keep_namespace(self, namespace: Namespace) -> Namespace:
        known = self._namespaces.get(namespace.name)
        if known is not None and known.changed_at > namespace.changed_at:
            return known
        self._namespaces[namespace.name] = namespace
        return namespace


def _namespace(row: Row) -> Namespace:
    namespace_id, name, defaults, quotas, created_at, changed_at = row
    return Namespace(
        namespace_id=namespace_id,
        name=name,
        policies=from_document(defaults),
        quotas=quota.from_document(quotas),
        created_at=created_at,
        changed_at=changed_at,
    )


def _handler(row: Row) -> Handler:
    (handler_id, namespace_id, name, defaults, paused, pause_note, mode, queue_timeout_ms, max_unfinished,
     changed_at) = row  # fmt: skip
    dispatch = Dispatch(
        mode=DispatchMode(mode),
        queue_timeout=timedelta(milliseconds=queue_timeout_ms),
        max_unfinished=max_unfinished,
    )
    return Handler(
        handler_id=handler_id,
        namespace_id=namespace_id,
        name=name,
        policies=from_document(defaults),
        paused=paused,
        pause_note=pause_note,
        dispatch=dispatch,
        changed_at=changed_at,
    )
