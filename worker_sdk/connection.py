"""Where the nodes are, who calls them, and the channel to one of them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import grpc

from worker_sdk.errors import ConfigurationError
from worker_sdk.tls import PathText, Tls

ADDRESS_VARIABLE = "SHARDWHEEL_ADDRESS"
NAMESPACE_VARIABLE = "SHARDWHEEL_NAMESPACE"
TOKEN_VARIABLE = "SHARDWHEEL_TOKEN"
TOKEN_FILE_VARIABLE = "SHARDWHEEL_TOKEN_FILE"
DEFAULT_ADDRESS = "localhost:7400"
DEFAULT_NAMESPACE = "default"

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")

# A claim is at most 1 MiB or one job; 16 MiB leaves room for lists of jobs with long labels and errors.
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    # Nodes answer with errors that have details, and take in no more than this themselves.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A node that vanished without a word is noticed within half a minute; nodes allow a ping every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A proxy that lets no ping through does not make a connection dead on which data comes.
    ("grpc.http2.ping_timeout_ms", 2**31 - 1),
    # Channels to one address must not share a back-off: a worker's session should not wait for a client's failure.
    ("grpc.use_local_subchannel_pool", 1),
)


class ConnectionOptions(TypedDict, total=False):
    """Arguments of `Connection.resolve`, as far as they are given."""

    address: str | None
    namespace: str | None
    ca: PathText | None
    tls: Tls | None
    token: str | None
    token_file: PathText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach the cluster."""

    addresses: tuple[str, ...]
    """One or more `host:port`; the next one is used when one does not answer."""
    namespace: str = DEFAULT_NAMESPACE
    """Tenant of all jobs, schedules and workers."""
    tls: Tls | None = None
    """Files for TLS. Unset: no TLS."""
    token: str | None = field(default=None, repr=False)
    """Sent as `authorization: Bearer …` with every call."""
    token_file: Path | None = None
    """File that holds the token instead; read for each call, so the token may be replaced while the program runs."""

    @classmethod
    def resolve(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        ca: PathText | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        token_file: PathText | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Connection":
        """Fill what is left out from the environment, else with defaults.

        `address` is `host:port`, or several of them with commas between. `ca` is short for `tls=Tls(ca=…)`. Raises
        `ConfigurationError` for what is malformed, and for files that cannot be read.
        """
        variables = os.environ if environment is None else environment
        text = address or variables.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        if token is None and token_file is None:
            token = variables.get(TOKEN_VARIABLE) or None
            token_file = None if token else variables.get(TOKEN_FILE_VARIABLE) or None
        connection = cls(
            addresses=tuple(_checked_address(part.strip()) for part in text.split(",")),
            namespace=namespace or variables.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE,
            tls=Tls.resolve(tls, ca, variables),
            token=_checked_token(token, "token") if token else None,
            token_file=None if token or token_file is None else Path(token_file),
        )
        _ = connection.metadata
        return connection

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries beside its request. Raises `ConfigurationError` if the token's file is unreadable."""
        token = self.token
        if self.token_file is not None:
            try:
                token = _checked_token(self.token_file.read_text(encoding="utf-8").strip(), "token_file")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"token_file: cannot read {str(self.token_file)!r}: {error}") from error
        return (("authorization", f"Bearer {token}"),) if token else ()

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """Open a channel to one node, for use in the running event loop only. It connects with the first call."""
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, self.tls.read().credentials(), options=_CHANNEL_OPTIONS)


def _checked_address(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigurationError(f"address: {address!r} is not host:port; write for example {DEFAULT_ADDRESS!r}")
    return address


def _checked_token(token: str, name: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(f"{name}: holds characters that no token has; is a line break among them?")
    return token
