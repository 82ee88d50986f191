"""Where the nodes are, and the channel to one of them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from worker_sdk.errors import ConfigurationError

ADDRESS_VARIABLE = "SHARDWHEEL_ADDRESS"
NAMESPACE_VARIABLE = "SHARDWHEEL_NAMESPACE"
DEFAULT_ADDRESS = "localhost:7400"
DEFAULT_NAMESPACE = "default"

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")

# A claim is at most 1 MiB or one job; 16 MiB leaves room for lists of jobs with long labels and errors.
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Channels to one address must not share a back-off: a worker's session should not wait for a client's failure.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach the cluster."""

    addresses: tuple[str, ...]
    """One or more `host:port`; the next one is used when one does not answer."""
    namespace: str = DEFAULT_NAMESPACE
    """Tenant of all jobs, schedules and workers."""
    ca: Path | None = None
    """PEM file of the certificate authority of the nodes. Unset: no TLS."""
    token: str | None = None
    """Sent as `authorization: Bearer …` with every call."""

    @classmethod
    def resolve(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        token: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Connection":
        """Fill what is left out from the environment, else with defaults.

        `address` is `host:port`, or several of them with commas between. Raises `ConfigurationError` for a malformed
        one, or if the file named by `ca` cannot be read.
        """
        variables = os.environ if environment is None else environment
        text = address or variables.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        connection = cls(
            addresses=tuple(_checked_address(part.strip()) for part in text.split(",")),
            namespace=namespace or variables.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE,
            ca=Path(ca) if ca is not None else None,
            token=token,
        )
        connection.root_certificates()
        return connection

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries beside its request."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def root_certificates(self) -> bytes | None:
        """Return the certificates that `ca` names, None without TLS."""
        if self.ca is None:
            return None
        try:
            return self.ca.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"ca: cannot read {str(self.ca)!r}: {error.strerror}; name a PEM file") from error

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """Open a channel to one node, for use in the running event loop only. It connects with the first call."""
        certificates = self.root_certificates()
        if certificates is None:
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(certificates)
        return grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)


def _checked_address(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigurationError(f"address: {address!r} is not host:port; write for example {DEFAULT_ADDRESS!r}")
    return address
