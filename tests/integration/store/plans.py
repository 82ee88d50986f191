"""Statements as the product sends them, and what PostgreSQL does with them under a generic plan."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from server.store.arrays import Array, JsonbArray
from server.store.database import Database, Query, Row


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement with its parameters."""

    query: str
    params: Sequence[object]


class _Caught(Exception):
    def __init__(self, sent: Sent) -> None:
        super().__init__(sent.query)
        self.sent = sent


class _Catching(Database):
    """Not connected to anything: the first statement that is run comes back as an exception."""

    def __init__(self) -> None:
        pass

    async def run(
        self, query: Query, params: Sequence[object] = (), *, timeout: float = 6.0, api: bool = False
    ) -> list[Row]:
        raise _Caught(Sent(query.decode() if isinstance(query, bytes) else query, params))


def sent_by(call: Callable[[Database], Awaitable[object]]) -> Sent:
    """Return the first statement that `call` runs."""
    return asyncio.run(sent_by_awaited(call))


async def sent_by_awaited(call: Callable[[Database], Awaitable[object]]) -> Sent:
    """Like `sent_by`, inside a running loop."""
    try:
        await call(_Catching())
    except _Caught as caught:
        return caught.sent
    raise AssertionError("no statement was run")


@dataclass(frozen=True, slots=True)
class Scan:
    """One node of a plan that reads a table; rows and blocks are totals over all loops.

    Older servers round the rows of a loop, so a total may be wrong by half a row a loop.
    """

    kind: str
    relation: str
    index: str | None
    loops: float
    rows: float
    removed: float
    blocks: int

    @property
    def walked(self) -> float:
        """Rows that were looked at."""
        return self.rows + self.removed


@dataclass(frozen=True, slots=True)
class Explained:
    """What a statement did."""

    plan: dict[str, Any]
    scans: list[Scan]
    locked: frozenset[str]
    """Tables and indexes that the transaction has locked, those of the catalog left out."""
    generic: bool

    def nodes(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield each node with its ancestors, the outermost first."""
        return _walk(self.plan, [])


def explain(
    connection: psycopg.Connection[Any], sent: Sent, after: Callable[[psycopg.Connection[Any]], None] | None = None
) -> Explained:
    """Run a statement as a prepared one with a generic plan, in a transaction that is rolled back.

    `after` is called before the rollback.
    """
    numbers = iter(range(1, 1000))
    text = re.sub("%s", lambda match: f"${next(numbers)}", sent.query)
    values = sql.SQL(", ").join(_literal(value) for value in sent.params)
    arguments = sql.SQL("({})").format(values) if sent.params else sql.SQL("")
    connection.execute(f"PREPARE examined AS {text}".encode())
    try:
        with connection.transaction(force_rollback=True):
            explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE examined") + arguments
            [(document,)] = connection.execute(explain).fetchall()
            locked = {name for (name,) in connection.execute(_LOCKED).fetchall()}
            [(generic,)] = connection.execute(_GENERIC).fetchall()
            if after is not None:
                after(connection)
    finally:
        connection.execute("DEALLOCATE examined")
    plan = document[0]["Plan"]
    scans = [_scan(node) for node, _ in _walk(plan, []) if "Relation Name" in node and "Scan" in node["Node Type"]]
    return Explained(plan, scans, frozenset(locked), generic)


_LOCKED = """
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
  AND c.relnamespace = 'shardwheel_store'::regnamespace AND c.relkind IN ('r', 'p', 'i', 'I')
"""
_GENERIC = "SELECT generic_plans = 1 AND custom_plans = 0 FROM pg_prepared_statements WHERE name = 'examined'"


def _literal(value: object) -> sql.Composable:
    if isinstance(value, JsonbArray):
        return sql.Literal([None if one is None else bytes(one).decode() for one in value.values])  # type: ignore[call-overload]
    return sql.Literal(list(value.values) if isinstance(value, Array) else value)


def _walk(
    node: dict[str, Any], ancestors: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    yield node, ancestors
    for child in node.get("Plans", []):
        yield from _walk(child, [*ancestors, node])


def _scan(node: dict[str, Any]) -> Scan:
    loops = node["Actual Loops"]
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    below = sum(child["Shared Hit Blocks"] + child["Shared Read Blocks"] for child in node.get("Plans", []))
    return Scan(
        kind=node["Node Type"],
        relation=node["Relation Name"],
        index=node.get("Index Name"),
        loops=loops,
        rows=node["Actual Rows"] * loops,
        removed=removed * loops,
        blocks=node["Shared Hit Blocks"] + node["Shared Read Blocks"] - below,
    )
