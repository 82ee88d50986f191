"""Access control of a node: its certificates, the credentials that it knows, the key that it shows to the others."""

from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Final

import grpc

from server.access.certificates import Certificates, TlsFiles
from server.access.gate import NODE_SCHEME, Gate
from server.access.keyring import Changes, Keyring
from server.access.secret import digest_of, draw
from server.config import NodeConfig
from server.domain.access import NODE_KEY_LIFE
from server.engine.loops import every
from server.known_errors import known_errors
from server.store import tokens
from server.store.database import Database
from server.store.errors import Unavailable

# How long a token may still be of use on this node after it was revoked elsewhere.
REFRESH_S: Final = 1.0
CERTIFICATES_S: Final = 5.0
# Well within the time after which the key of a node that is gone is forgotten.
KEY_AGAIN_S: Final = NODE_KEY_LIFE.total_seconds() / 4


class NodeAccess:
    """`open` it once the database is there; until then nobody is known.

    Raises `InvalidInput` for certificates that cannot be used.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self.certificates = _certificates(config)
        """None without TLS."""
        self._secret = draw()
        self._database: Database | None = None
        self.keyring = Keyring(self._changes)
        self.gate = Gate(self.keyring, closed=config.beyond_loopback or self.certificates is not None)

    async def open(self, database: Database) -> None:
        """Learn all credentials, and make the node's own key known. Raises `Unavailable`, `UnknownOutcome`."""
        self._database = database
        await self.keyring.refresh()
        await self._put_key()

    def loops(self) -> "dict[str, Coroutine[object, object, None]]":
        """What has to run as long as the node serves, by name."""
        loops = {
            "credentials": every(REFRESH_S, "credentials", known_errors(self.keyring.refresh)),
            "node-key": every(KEY_AGAIN_S, "node key", known_errors(self._put_key)),
        }
        if self.certificates is not None:
            loops["certificates"] = every(CERTIFICATES_S, "certificates", self._look)
        return loops

    @property
    def authorization(self) -> str:
        """What calls to other nodes carry in the header of that name."""
        return f"{NODE_SCHEME} {self._secret}"

    @property
    def server_credentials(self) -> grpc.ServerCredentials | None:
        """For the gRPC port; None without TLS."""
        return self.certificates.server_credentials if self.certificates is not None else None

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For channels to other nodes; None without TLS."""
        return self.certificates.channel_credentials if self.certificates is not None else None

    async def _look(self) -> None:
        assert self.certificates is not None
        self.certificates.look()

    async def _changes(self, since: datetime | None) -> Changes:
        if self._database is None:
            raise Unavailable("the node has not reached the database yet")
        now, ever, credentials, node_keys = await tokens.changes(self._database, since)
        return Changes(now=now, ever=ever, credentials=credentials, node_keys=node_keys)

    async def _put_key(self) -> None:
        assert self._database is not None
        await tokens.put_node_key(self._database, self._node, digest_of(self._secret))


def _certificates(config: NodeConfig) -> Certificates | None:
    if not config.tls_cert:
        return None
    files = TlsFiles(
        tls_cert=Path(config.tls_cert),
        tls_key=Path(config.tls_key),
        tls_client_ca=Path(config.tls_client_ca) if config.tls_client_ca else None,
        tls_ca=Path(config.tls_ca) if config.tls_ca else None,
    )
    return Certificates(files)
