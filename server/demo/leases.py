"""Who grants the demo's leases: the choice, and the server if there is one."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from server.demo.settings import CoordinatorKind
from server.embedded import EmbeddedZookeeper, ZookeeperMissing
from server.embedded.zookeeper_installation import ADDRESS_VARIABLE, ZookeeperInstallation


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A coordinator, and why it is not the one that would be preferred; empty if it is."""

    kind: CoordinatorKind
    regret: str = ""


def choose(wanted: CoordinatorKind | None) -> Choice:
    """Return what is `wanted`; without a wish, ZooKeeper if it is here, else PostgreSQL. Raises `ZookeeperMissing`."""
    if wanted is CoordinatorKind.POSTGRES or os.environ.get(ADDRESS_VARIABLE):
        return Choice(kind=wanted or CoordinatorKind.ZOOKEEPER)
    try:
        ZookeeperInstallation.find()
    except ZookeeperMissing as missing:
        if wanted is CoordinatorKind.ZOOKEEPER:
            raise
        return Choice(kind=CoordinatorKind.POSTGRES, regret=str(missing))
    return Choice(kind=CoordinatorKind.ZOOKEEPER)


class Leases:
    """The part of a demo's cluster that grants leases. Its methods block."""

    def __init__(self, kind: CoordinatorKind, folder: Path) -> None:
        """`folder` is for a ZooKeeper of the demo's own. Raises `ZookeeperMissing`."""
        self._server: EmbeddedZookeeper | None = None
        self.settings = {"SHARDWHEEL_COORDINATOR": kind.value}
        """Variables for the nodes."""
        if kind is CoordinatorKind.POSTGRES:
            return
        given = os.environ.get(ADDRESS_VARIABLE)
        if not given:
            self._server = EmbeddedZookeeper(folder)
        hosts = given or (self._server.hosts if self._server is not None else "")
        self.settings["SHARDWHEEL_ZOOKEEPER"] = f"{hosts}/shardwheel-demo/{secrets.token_hex(8)}"

    def start(self) -> None:
        """Start the server. Raises `EmbeddedZookeeperError`."""
        if self._server is not None:
            self._server.start()

    def kill(self) -> None:
        """End the server at once."""
        if self._server is not None:
            self._server.kill()
