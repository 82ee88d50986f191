"""Options that every command takes, written before or after the command."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.option_types import DURATION
from worker_sdk.tls import SYSTEM, Tls

DEFAULT_ADDRESS = "localhost:7400"
DEFAULT_PORT = 7400
DEFAULT_TIMEOUT = timedelta(seconds=10)
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")


class Format(StrEnum):
    """What is written to stdout."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """The options as they were given at one place of the command line; None where they were not."""

    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Server. [env: SHARDWHEEL_ADDRESS; default: localhost:7400]"),
    ] = None
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace. [env: SHARDWHEEL_NAMESPACE; default: default]")
    ] = None
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Bearer token. [env: SHARDWHEEL_TOKEN, which stays out of `ps`]")
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File that holds the token instead. [env: SHARDWHEEL_TOKEN_FILE]"),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='PEM certificates to trust, or "system" for those that the system trusts; turns TLS on. '
            "[env: SHARDWHEEL_CA]",
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="PEM certificate to show, if the server asks for one. [env: SHARDWHEEL_CERT]"
        ),
    ] = None
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key. [env: SHARDWHEEL_KEY]")] = None
    output: Annotated[Format | None, typer.Option("--output", "-o", help="What to print. [default: table]")] = None
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            **DURATION, help="Limit of each call, or of a whole wait. [default: 10s; waiting goes on without one]"
        ),
    ] = None

    def over(self, outer: "GlobalOptions") -> "GlobalOptions":
        """These options, and those of `outer` where these are not given: the place nearer to the command wins."""
        merged = {
            one.name: getattr(outer, one.name) if getattr(self, one.name) is None else getattr(self, one.name)
            for one in fields(self)
        }
        return GlobalOptions(**merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options in force. `timeout` is None if none was given; `call_timeout` is never without a value."""

    address: str = DEFAULT_ADDRESS
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    output: Format = Format.TABLE
    timeout: timedelta | None = None

    @property
    def call_timeout(self) -> timedelta:
        """Deadline of one call, counted from its start."""
        return self.timeout or DEFAULT_TIMEOUT


def resolve(given: GlobalOptions, environment: Mapping[str, str]) -> Settings:
    """Fills what was not given from the environment, then from the defaults. An empty variable counts as unset.

    Raises RefusedInputError for a malformed address, a timeout of zero, a token that cannot be sent or read, and half
    of a certificate and key.
    """
    if given.timeout is not None and not given.timeout:
        raise RefusedInputError("error: --timeout: has to be longer than 0s")
    return Settings(
        address=_complete(given.address or environment.get("SHARDWHEEL_ADDRESS") or DEFAULT_ADDRESS),
        namespace=given.namespace or environment.get("SHARDWHEEL_NAMESPACE") or "default",
        token=_token(given, environment),
        tls=_tls(given, environment),
        output=given.output or Format.TABLE,
        timeout=given.timeout,
    )


def _token(given: GlobalOptions, environment: Mapping[str, str]) -> str | None:
    """The token: an option goes before a variable, and the token itself before its file."""
    name, token, file = "--token", given.token, given.token_file
    if token is None and file is None:
        token = environment.get("SHARDWHEEL_TOKEN") or None
        file = Path(path) if (path := environment.get("SHARDWHEEL_TOKEN_FILE")) else None
    if token is None and file is not None:
        name = "--token-file"
        try:
            token = file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise RefusedInputError(f"error: --token-file: cannot read {file}: {error.strerror}") from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise RefusedInputError(f"error: {name}: holds characters that no token has; is a line break among them?")
    return token


def _tls(given: GlobalOptions, environment: Mapping[str, str]) -> Tls | None:
    """The files for TLS; None if none is named."""

    def named(option: Path | None, variable: str) -> Path | None:
        return option or (Path(path) if (path := environment.get(variable)) else None)

    ca, cert, key = (
        named(given.ca, "SHARDWHEEL_CA"),
        named(given.cert, "SHARDWHEEL_CERT"),
        named(given.key, "SHARDWHEEL_KEY"),
    )
    if ca is None and cert is None and key is None:
        return None
    if (cert is None) != (key is None):
        raise RefusedInputError("error: --cert and --key: a certificate needs its key, and a key its certificate")
    return Tls(ca=SYSTEM if ca is None else str(ca), cert=cert, key=key)


def _complete(address: str) -> str:
    """Adds the port that an address lacks: gRPC would take 443."""
    if address.startswith(_SCHEMES):
        return address
    match = _ADDRESS.fullmatch(address)
    host, port = (match["host"], match["port"]) if match is not None else (f"[{address}]", None)
    if (match is None and not _is_ipv6(address)) or not 0 < int(port or DEFAULT_PORT) < 65536:
        raise RefusedInputError(f"error: --address: {address!r} is not HOST:PORT, for example {DEFAULT_ADDRESS}")
    return f"{host}:{port or DEFAULT_PORT}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
