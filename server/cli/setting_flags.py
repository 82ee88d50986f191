"""A flag for each setting of a node, made from `NodeConfig`: one place says what a setting is called and means."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, get_type_hints

import typer

from server.cli.failure import told_to_people
from server.config import PREFIX, NodeConfig, load_config, unknown_variables
from server.domain.errors import InvalidInput

_METAVARS: Final[Mapping[type, str]] = {int: "N", timedelta: "DURATION", Path: "DIR", str: "TEXT"}
_SCHEMES: Final = ("postgresql://", "postgres://")


def takes_settings(command: Callable[[NodeConfig], None]) -> Callable[..., None]:
    """Return a typer command that reads the settings from flags and variables and calls `command` with them."""

    def run(**given: str | bool | None) -> None:
        with told_to_people():
            command(read_config(given))

    parameters = [_parameter(one, help_text) for one, help_text in zip(fields(NodeConfig), _docs(), strict=True)]
    run.__doc__ = inspect.getdoc(command)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def read_config(given: Mapping[str, str | bool | None]) -> NodeConfig:
    """Return the settings of a node that has a database. Raises `InvalidInput`."""
    unknown = unknown_variables()
    config = load_config(given)
    if unknown:
        typer.echo(f"warning: no setting is called {', '.join(unknown)}", err=True)
    check_database(config.database)
    return config


def check_database(uri: str) -> None:
    """Refuse what is no connection URI before a driver quotes it in an error. Raises `InvalidInput`."""
    if not uri:
        raise InvalidInput("database", "", "is required: the URI of PostgreSQL, as in postgresql://user@host:5432/name")
    if not uri.startswith(_SCHEMES):
        raise InvalidInput("database", "***", "has to be a URI, as in postgresql://user@host:5432/name")


def _docs() -> list[str]:
    """Return what stands below each field of `NodeConfig` in its source; Python keeps no docstrings of fields."""
    [definition] = ast.parse(inspect.getsource(NodeConfig)).body
    assert isinstance(definition, ast.ClassDef)
    docs = []
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs.append(inspect.cleandoc(text))
                case _:
                    docs.append("")
    return docs


def _parameter(one: "Field[object]", doc: str) -> inspect.Parameter:
    notes = [f"env: {PREFIX}{one.name.upper()}"]
    default = _default(one)
    if default:
        notes.append(f"default: {default}")
    kind = get_type_hints(NodeConfig)[one.name]
    flag, text = f"--{one.name.replace('_', '-')}", f"{doc} [{'; '.join(notes)}]"
    annotation: object
    if kind is bool:
        annotation = Annotated[bool | None, typer.Option(flag, help=text)]
    else:
        metavar = "URI" if one.name == "database" else _METAVARS[kind]
        annotation = Annotated[str | None, typer.Option(flag, metavar=metavar, help=text)]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(one: "Field[object]") -> str:
    if one.default is MISSING:
        return "the name of the host" if one.name == "node" else ""
    if one.default is False:
        return ""
    return _span(one.default) if isinstance(one.default, timedelta) else str(one.default)


def _span(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:g}{unit}"
    return f"{seconds * 1000:g}ms"
