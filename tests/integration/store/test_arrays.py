"""Arrays of every kind come back from the database as they were sent."""

import json
import math
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.adapt import AdaptersMap

from server.store.arrays import (
    Array,
    BoolArray,
    ByteaArray,
    Float8Array,
    InstantArray,
    Int2Array,
    Int4Array,
    Int8Array,
    JsonbArray,
    TextArray,
    pg_microseconds,
    register,
)
from tests.support.postgres import PostgresServer

FIRST = datetime(1, 1, 1, tzinfo=UTC)
MILLENNIUM = datetime(2000, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


# PostgreSQL keeps no NUL in texts, nor lone surrogates; both are refused or cleaned at the edge.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
INSTANTS = st.datetimes(
    FIRST.replace(tzinfo=None) + timedelta(days=1), LAST.replace(tzinfo=None) - timedelta(days=1), timezones=ZONES
)
DOCUMENTS = st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(-(10**9), 10**9), st.booleans(), st.none()))


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


KINDS: dict[str, tuple[type[Array], str, st.SearchStrategy[Any]]] = {
    "int2": (Int2Array, "int2", whole(16)),
    "int4": (Int4Array, "int4", whole(32)),
    "int8": (Int8Array, "int8", whole(64)),
    "float8": (Float8Array, "float8", st.floats(allow_nan=False)),
    "bool": (BoolArray, "bool", st.booleans()),
    "text": (TextArray, "text", TEXTS),
    "bytea": (ByteaArray, "bytea", st.binary()),
    "jsonb": (JsonbArray, "jsonb", DOCUMENTS.map(encoded)),
    "instant": (InstantArray, "timestamptz", INSTANTS),
}


class _Adapters:
    """What `register` needs of a connection, which here is not an asynchronous one."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connected:
        connected.execute("SET timezone = 'UTC'")
        registrar: Callable[[Any], None] = register
        registrar(_Adapters(connected.adapters))
        yield connected


def through(connection: psycopg.Connection[Any], kind: str, values: list[Any]) -> list[Any]:
    """Return what PostgreSQL has read, element by element."""
    array, element, _ = KINDS[kind]
    query = f"SELECT v FROM unnest(%s::{element}[]) WITH ORDINALITY AS u(v, n) ORDER BY n"
    cursor = connection.cursor(binary=True)
    return [value for (value,) in cursor.execute(query.encode(), (array(values),)).fetchall()]


def plain(kind: str, value: Any) -> Any:
    return json.loads(value) if kind == "jsonb" and value is not None else value


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_round_trip(connection: psycopg.Connection[Any], kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind][2], max_size=30))
    returned = through(connection, kind, values)
    assert [plain(kind, one) for one in returned] == [plain(kind, one) for one in values]


EDGES: dict[str, list[Any]] = {
    "int2": [-32768, 32767, 0, None],
    "int4": [-(2**31), 2**31 - 1, None],
    "int8": [-(2**63), 2**63 - 1, None],
    "float8": [math.inf, -math.inf, 5e-324, -0.0, None],
    "bool": [True, False, None],
    "text": ["", "NULL", '{"a",\\}', "a,b", " ", "☃𝄞é", "x" * 100_000, None],
    "bytea": [b"", b"\0", bytes(range(256)), bytes(1 << 20), None],
    "jsonb": [b"{}", b"[1, null]", '"☃"'.encode(), None],
    "instant": [
        FIRST,
        LAST,
        datetime(2000, 1, 1, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        None,
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_edges(connection: psycopg.Connection[Any], kind: str) -> None:
    values = EDGES[kind]
    assert [plain(kind, one) for one in through(connection, kind, values)] == [plain(kind, one) for one in values]
    assert through(connection, kind, []) == []
    assert through(connection, kind, [None]) == [None]


@pytest.mark.parametrize("kind", KINDS)
def test_empty_array_is_an_array_and_not_null(connection: psycopg.Connection[Any], kind: str) -> None:
    array, element, _ = KINDS[kind]
    query = f"SELECT %s::{element}[] = '{{}}', cardinality(%s::{element}[])"
    assert connection.execute(query.encode(), (array([]), array([]))).fetchall() == [(True, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_has_its_declared_type_whatever_the_values(connection: psycopg.Connection[Any], kind: str) -> None:
    """Otherwise a prepared statement would be planned anew for other values."""
    array, element, _ = KINDS[kind]
    for values in ([], [None], EDGES[kind]):
        [(name,)] = connection.execute("SELECT pg_typeof(%s)::regtype::oid::int8", (array(values),)).fetchall()
        [(expected,)] = connection.execute(f"SELECT '{element}[]'::regtype::oid::int8".encode()).fetchall()
        assert name == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Int2Array, 32768),
        (Int4Array, 2**31),
        (Int8Array, 2**63),
        (Int8Array, "1"),
        (TextArray, 1),
        (TextArray, "\ud800"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(
    connection: psycopg.Connection[Any], kind: type[Array], value: object
) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, struct.error)):
        connection.execute("SELECT %s", (kind([value]),))
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_naive_instants_are_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(TypeError):
        connection.execute("SELECT %s", (InstantArray([FIRST.replace(tzinfo=None)]),))


@settings(deadline=None)
@given(instant=INSTANTS)
def test_microseconds_are_exact(instant: datetime) -> None:
    assert MILLENNIUM + timedelta(microseconds=pg_microseconds(instant)) == instant
