"""Typed Python values from parsed JSON: dataclasses, TypedDicts, containers, enums, dates and the plain types.

A decoder is compiled once from a type and is then a plain function, so that decoding costs what the type needs. Unknown
keys are ignored, so that a submitter may be newer than a worker; missing keys take their default or are refused.
"""

import base64
import binascii
import dataclasses
import enum
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation

from worker_sdk.errors import ConfigurationError, PayloadError

Decode = Callable[[object, str], object]
"""Turns a JSON value into a typed one. The string is the path of the value, for errors."""


def compile_decoder(annotation: object) -> Decode:
    """Return the decoder of a type. Raises `ConfigurationError` if the type is not supported."""
    return _Compiler().compile(annotation)


class _Compiler:
    """Compiles one type with all that it refers to, itself included."""

    def __init__(self) -> None:
        self._known: dict[object, Decode] = {}

    def compile(self, annotation: object) -> Decode:
        annotation = _unwrapped(annotation)
        if annotation in (typing.Any, object):
            return _any
        if annotation is None:
            return _none
        if isinstance(annotation, type) and annotation in _SCALARS:
            return _SCALARS[annotation]
        if isinstance(annotation, type) and annotation in self._known:
            return self._known[annotation]
        if typing.is_typeddict(annotation):
            return self._typed_dict(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return _union([self.compile(argument) for argument in arguments], annotation)
        if origin is typing.Literal:
            return _literal(arguments)
        container = origin or annotation
        if isinstance(container, type):
            decode = self._container(container, arguments)
            if decode is not None:
                return decode
        raise ConfigurationError(
            f"payload type {annotation!r} is not supported; use a dataclass, a TypedDict, dict, list, bytes or a plain"
            " type, or give the worker a codec that knows it"
        )

    def _container(self, container: type, arguments: tuple[object, ...]) -> Decode | None:
        if dataclasses.is_dataclass(container):
            return self._dataclass(container)
        if issubclass(container, enum.Enum):
            return _converted(container, f"one of {[member.value for member in container]}")
        if container in (list, abc.Sequence, abc.Iterable, abc.Collection):
            return self._collection(list, arguments)
        if container in (set, abc.Set, abc.MutableSet):
            return self._collection(set, arguments)
        if container is frozenset:
            return self._collection(frozenset, arguments)
        if container is tuple:
            return self._tuple(arguments)
        if container in (dict, abc.Mapping, abc.MutableMapping):
            return self._mapping(arguments)
        return None

    def _collection(self, build: Callable[[list[object]], object], arguments: tuple[object, ...]) -> Decode:
        item = self.compile(arguments[0]) if arguments else _any

        def decode(value: object, path: str) -> object:
            if not isinstance(value, list):
                _refuse(value, path, "a list")
            return build([item(element, f"{path}[{index}]") for index, element in enumerate(value)])

        return decode

    def _tuple(self, arguments: tuple[object, ...]) -> Decode:
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return self._collection(tuple, arguments[:1])
        items = [self.compile(argument) for argument in arguments]

        def decode(value: object, path: str) -> object:
            if not isinstance(value, list) or len(value) != len(items):
                _refuse(value, path, f"a list of {len(items)}")
            pairs = zip(items, value, strict=True)
            return tuple(item(element, f"{path}[{index}]") for index, (item, element) in enumerate(pairs))

        return decode

    def _mapping(self, arguments: tuple[object, ...]) -> Decode:
        if not arguments:
            return _object
        decode_key, decode_value = self._key(arguments[0]), self.compile(arguments[1])

        def decode(value: object, path: str) -> object:
            if not isinstance(value, dict):
                _refuse(value, path, "an object")
            return {decode_key(key, path): decode_value(element, f"{path}.{key}") for key, element in value.items()}

        return decode

    def _key(self, annotation: object) -> Decode:
        # JSON has string keys only; integers are written as their digits.
        return _from_text(int, "an integer in a key") if annotation is int else self.compile(annotation)

    def _typed_dict(self, annotation: object) -> Decode:
        fields: dict[str, Decode] = {}
        required: set[str] = set()

        def decode(value: object, path: str) -> object:
            if not isinstance(value, dict):
                _refuse(value, path, "an object")
            for name in required:
                if name not in value:
                    raise PayloadError(f"{path}.{name}: is missing")
            return {name: field(value[name], f"{path}.{name}") for name, field in fields.items() if name in value}

        self._known[annotation] = decode
        required |= getattr(annotation, "__required_keys__", frozenset())
        for name, hint in _hints(annotation).items():
            fields[name] = self.compile(hint)
        return decode

    def _dataclass(self, cls: type) -> Decode:
        fields: list[tuple[str, Decode, bool]] = []

        def decode(value: object, path: str) -> object:
            if not isinstance(value, dict):
                _refuse(value, path, "an object")
            arguments: dict[str, object] = {}
            for name, field, has_default in fields:
                if name in value:
                    arguments[name] = field(value[name], f"{path}.{name}")
                elif not has_default:
                    raise PayloadError(f"{path}.{name}: is missing")
            try:
                return cls(**arguments)
            except (ValueError, TypeError) as error:
                raise PayloadError(f"{path}: {cls.__name__} refuses the values: {error}") from error

        self._known[cls] = decode
        hints = _hints(cls)
        for item in dataclasses.fields(cls):
            if item.init:
                has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
                fields.append((item.name, self.compile(hints[item.name]), has_default))
        return decode


def _refuse(value: object, path: str, expected: str) -> typing.NoReturn:
    shown = repr(value)
    raise PayloadError(f"{path}: {shown if len(shown) <= 80 else shown[:77] + '...'} is not {expected}")


def _any(value: object, path: str) -> object:
    return value


def _none(value: object, path: str) -> None:
    if value is not None:
        _refuse(value, path, "null")


def _bool(value: object, path: str) -> object:
    return value if isinstance(value, bool) else _refuse(value, path, "true or false")


def _int(value: object, path: str) -> object:
    return value if isinstance(value, int) and not isinstance(value, bool) else _refuse(value, path, "an integer")


def _float(value: object, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, path, "a number")
    return float(value)


def _str(value: object, path: str) -> object:
    return value if isinstance(value, str) else _refuse(value, path, "a string")


def _from_text(convert: Callable[[str], object], expected: str) -> Decode:
    def decode(value: object, path: str) -> object:
        if not isinstance(value, str):
            _refuse(value, path, expected)
        try:
            return convert(value)
        except (ValueError, InvalidOperation, binascii.Error):
            _refuse(value, path, expected)

    return decode


def _converted(convert: Callable[[object], object], expected: str) -> Decode:
    def decode(value: object, path: str) -> object:
        try:
            return convert(value)
        except (ValueError, TypeError):
            _refuse(value, path, expected)

    return decode


def _seconds(value: object, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, path, "a number of seconds")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        _refuse(value, path, "a span of time that Python can hold")


_SCALARS: dict[type, Decode] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _from_text(lambda text: base64.b64decode(text, validate=True), "base64"),
    datetime: _from_text(datetime.fromisoformat, "an ISO 8601 date and time"),
    date: _from_text(date.fromisoformat, "an ISO 8601 date"),
    time: _from_text(time.fromisoformat, "an ISO 8601 time"),
    timedelta: _seconds,
    uuid.UUID: _from_text(uuid.UUID, "a UUID"),
    Decimal: _from_text(Decimal, "a decimal number in a string"),
}


def _union(decoders: list[Decode], annotation: object) -> Decode:
    def decode(value: object, path: str) -> object:
        refusals: list[str] = []
        for candidate in decoders:
            try:
                return candidate(value, path)
            except PayloadError as error:
                refusals.append(str(error))
        raise PayloadError(f"{path}: no member of {annotation} fits: {'; '.join(refusals)}")

    return decode


def _literal(values: tuple[object, ...]) -> Decode:
    def decode(value: object, path: str) -> object:
        for allowed in values:
            if type(value) is type(allowed) and value == allowed:
                return value
        _refuse(value, path, f"one of {list(values)}")

    return decode


def _object(value: object, path: str) -> object:
    return value if isinstance(value, dict) else _refuse(value, path, "an object")


def _unwrapped(annotation: object) -> object:
    """Return the type behind new names for it and behind remarks about it."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) in (typing.Annotated, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def _hints(annotation: object) -> dict[str, object]:
    try:
        return typing.get_type_hints(annotation, include_extras=True)
    except NameError as error:
        raise ConfigurationError(f"{annotation!r}: a field's type cannot be resolved: {error}") from error
