"""TLS and tokens of a cluster: one certificate for all nodes, one token for its load and its workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from tests.support.access import Site, granted
from worker_sdk.connection import ConnectionOptions

_RIGHTS: Final = "default:submit,work,read"


class Security:
    """Made before the nodes start: the first token closes them to everybody else."""

    def __init__(self, folder: Path) -> None:
        self._site = Site.new(folder / "tls")
        self._token_file = folder / "token"
        self.node_settings: Mapping[str, str] = self._site.node_settings()

    async def open(self, dsn: str) -> None:
        """Store the token in the database of the cluster."""
        self._token_file.write_text(await granted(dsn, _RIGHTS, holder="cluster"))

    @property
    def worker_variables(self) -> dict[str, str]:
        """Variables of a worker."""
        return {"SHARDWHEEL_CA": str(self._site.ca), "SHARDWHEEL_TOKEN_FILE": str(self._token_file)}

    @property
    def client_options(self) -> ConnectionOptions:
        """Arguments of a client."""
        return {"ca": self._site.ca, "token_file": self._token_file}

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to a node."""
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self._site.ca.read_bytes()))
