"""Turns an async function into a command that takes the global options as well.

A command is `async def body(cli: Cli, …)`. Its other parameters are typer's, annotated as usual; a parameter whose
annotation is a dataclass stands for one option per field, so that commands share groups of options.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, NoReturn, TypeVar, get_type_hints

import typer

from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import CommandFailedError, RefusedInputError
from shard_manager.shardctl.output import Output
from shard_manager.shardctl.settings import GlobalOptions, Settings, resolve
from shard_manager.shardctl.text import printable


@dataclass(frozen=True, slots=True)
class Cli:
    """What a command works with: the settings in force, the output, and a way to the server."""

    settings: Settings
    output: Output

    def connect(self) -> Connection:
        """A connection to the server, to be used in `async with`. It is made at the first call."""
        return Connection(self.settings)


Body = TypeVar("Body", bound=Callable[..., Awaitable[None]])


def command(group: typer.Typer, name: str) -> Callable[[Body], Body]:
    """Adds the decorated function to `group` as the command `name`; its docstring is the help."""

    def register(body: Body) -> Body:
        parameters = [*list(inspect.signature(body).parameters.values())[1:], _global_parameter()]

        def run(ctx: typer.Context, **given: object) -> None:
            arguments = _collect(parameters, given)
            options = arguments.pop("global_options")
            assert isinstance(options, GlobalOptions)
            _run(body, options.over(_outer(ctx)), arguments)

        _set_signature(run, parameters, inspect.getdoc(body))
        group.command(name)(run)
        return body

    return register


def group(help_text: str) -> typer.Typer:
    """A group of commands that takes the global options too."""
    # Plain help and errors: panels would break an error text over several lines, which no script can search.
    app = typer.Typer(help=help_text, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)

    def remember(ctx: typer.Context, **given: object) -> None:
        options = _collect([_global_parameter()], given)["global_options"]
        assert isinstance(options, GlobalOptions)
        ctx.obj = options.over(_outer(ctx))

    _set_signature(remember, [_global_parameter()], help_text)
    app.callback()(remember)
    return app


def _run(body: Callable[..., Awaitable[None]], options: GlobalOptions, arguments: dict[str, object]) -> None:
    async def execute() -> None:
        settings = resolve(options, os.environ)
        await body(Cli(settings, Output(settings.output)), **arguments)

    try:
        asyncio.run(execute())
    except CommandFailedError as error:
        _end(error)
    except UnicodeEncodeError as error:
        _end(RefusedInputError(f"error: {printable(repr(error.object))}: cannot be sent; write arguments in UTF-8"))


def _end(error: CommandFailedError) -> NoReturn:
    for line in error.lines:
        print(line, file=sys.stderr)
    raise typer.Exit(error.exit_code) from None


def _outer(ctx: typer.Context) -> GlobalOptions:
    return ctx.obj if isinstance(ctx.obj, GlobalOptions) else GlobalOptions()


def _global_parameter() -> inspect.Parameter:
    return inspect.Parameter("global_options", inspect.Parameter.KEYWORD_ONLY, annotation=GlobalOptions)


def _is_group(parameter: inspect.Parameter) -> bool:
    return is_dataclass(parameter.annotation)


def _flat(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """The parameters that typer sees for one of the body's."""
    if not _is_group(parameter):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(parameter.annotation, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(parameter.annotation)
    ]


def _collect(parameters: list[inspect.Parameter], given: dict[str, object]) -> dict[str, object]:
    """Puts flat values back together, one for each of `parameters`."""
    collected: dict[str, object] = {}
    for parameter in parameters:
        values = {flat.name: given[flat.name] for flat in _flat(parameter)}
        collected[parameter.name] = parameter.annotation(**values) if _is_group(parameter) else values[parameter.name]
    return collected


def _set_signature(function: Callable[..., Any], parameters: list[inspect.Parameter], doc: str | None) -> None:
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    flat = [context, *(each for parameter in parameters for each in _flat(parameter))]
    function.__doc__ = doc
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    vars(function)["__signature__"] = inspect.Signature(flat)
