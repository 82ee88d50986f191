"""Arrays as statement parameters, packed by hand in PostgreSQL's binary format.

psycopg's own list dumper costs several microseconds an element and picks the element type by the values, which would
flip prepared statements; these cost a fraction and always have the declared type. None is NULL in all of them.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

from psycopg import AsyncConnection, postgres
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = b"\xff\xff\xff\xff"

Encoder: TypeAlias = Callable[[Sequence[object]], list[bytes]]


class Array:
    """A one-dimensional array parameter; subclasses fix the element type."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[object]) -> None:
        self.values = values


def _fixed(code: str) -> Callable[[Sequence[object]], list[bytes]]:
    pack = struct.Struct(f"!i{code}").pack
    size = struct.calcsize(f"!{code}")

    def encode(values: Sequence[object]) -> list[bytes]:
        return [_NULL if value is None else pack(size, value) for value in values]

    return encode


_pack_length = struct.Struct("!i").pack
_pack_instant = struct.Struct("!iq").pack


def _encode_bytes(values: Sequence[object]) -> list[bytes]:
    return [_NULL if v is None else _pack_length(len(v)) + v for v in cast("Sequence[bytes | None]", values)]


def _encode_text(values: Sequence[object]) -> list[bytes]:
    return _encode_bytes([None if v is None else v.encode() for v in cast("Sequence[str | None]", values)])


def _encode_json(values: Sequence[object]) -> list[bytes]:
    return _encode_bytes([None if v is None else b"\x01" + v for v in cast("Sequence[bytes | None]", values)])


def pg_microseconds(value: datetime) -> int:
    """Return an instant as PostgreSQL stores it: microseconds since 2000-01-01 UTC."""
    return (value - _EPOCH) // _MICROSECOND


def _encode_instants(values: Sequence[object]) -> list[bytes]:
    instants = cast("Sequence[datetime | None]", values)
    return [_NULL if v is None else _pack_instant(8, pg_microseconds(v)) for v in instants]


class Int2Array(Array):
    """`smallint[]`."""

    __slots__ = ()


class Int4Array(Array):
    """`integer[]`."""

    __slots__ = ()


class Int8Array(Array):
    """`bigint[]`."""

    __slots__ = ()


class Float8Array(Array):
    """`double precision[]`."""

    __slots__ = ()


class BoolArray(Array):
    """`boolean[]`."""

    __slots__ = ()


class TextArray(Array):
    """`text[]`."""

    __slots__ = ()


class ByteaArray(Array):
    """`bytea[]`."""

    __slots__ = ()


class JsonbArray(Array):
    """`jsonb[]`, each element given as UTF-8 JSON text in bytes."""

    __slots__ = ()


class InstantArray(Array):
    """`timestamptz[]`."""

    __slots__ = ()


_KINDS: dict[type[Array], tuple[str, Encoder]] = {
    Int2Array: ("int2", _fixed("h")),
    Int4Array: ("int4", _fixed("i")),
    Int8Array: ("int8", _fixed("q")),
    Float8Array: ("float8", _fixed("d")),
    BoolArray: ("bool", _fixed("?")),
    TextArray: ("text", _encode_text),
    ByteaArray: ("bytea", _encode_bytes),
    JsonbArray: ("jsonb", _encode_json),
    InstantArray: ("timestamptz", _encode_instants),
}


def _dumper(element: str, encode: Encoder) -> type[Dumper]:
    info = postgres.types[element]
    header = struct.Struct("!iiiii").pack

    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = info.array_oid

        def dump(self, obj: Array) -> Buffer | None:
            values = obj.values
            if not values:
                return struct.pack("!iii", 0, 0, info.oid)
            return header(1, 1, info.oid, len(values), 1) + b"".join(encode(values))

    return ArrayDumper


class RawJsonb(Loader):
    """Returns jsonb as UTF-8 JSON text in bytes: most of it is only passed on."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]


def register(connection: AsyncConnection[Any]) -> None:
    """Teach a connection to send these arrays and to return jsonb unparsed."""
    connection.adapters.register_loader("jsonb", RawJsonb)
    for kind, (element, encode) in _KINDS.items():
        connection.adapters.register_dumper(kind, _dumper(element, encode))
