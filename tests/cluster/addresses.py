"""Where the processes of a cluster find each other: directly, or through its network."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from server.embedded.port import LOOPBACK, choose_port
from tests.cluster.network import Network
from tests.cluster.zookeeper import CHROOT

POSTGRES: Final = "postgres"
ZOOKEEPER: Final = "zookeeper"
PROCESS_SETTING: Final = "chaos.process"
"""A setting of each connection to PostgreSQL: the process that has opened it, with the number of its start."""


@dataclass(frozen=True, slots=True)
class Place:
    """A port that a target really listens on, and the one by which others reach it."""

    target: str
    own: int
    reached: int

    @property
    def address(self) -> str:
        """HOST:PORT for others."""
        return f"{LOOPBACK}:{self.reached}"


class Places:
    """All targets of a cluster."""

    def __init__(self, *, nodes: int, postgres: list[int], zookeeper: list[int], relayed: bool) -> None:
        """Choose ports; without a relay, all are reached where they are."""
        ports = iter(free_ports(nodes * 2 + len(postgres) + len(zookeeper)))
        self.relayed = relayed

        def place(target: str, own: int) -> Place:
            return Place(target, own, next(ports) if relayed else own)

        self.nodes = [place(f"node-{number}", next(ports)) for number in range(1, nodes + 1)]
        self.postgres = [place(name, port) for name, port in zip(numbered(POSTGRES, postgres), postgres, strict=True)]
        self.zookeeper = [
            place(name, port) for name, port in zip(numbered(ZOOKEEPER, zookeeper), zookeeper, strict=True)
        ]

    async def open(self, network: Network) -> None:
        """Have the network listen for all targets."""
        for one in (*self.nodes, *self.postgres, *self.zookeeper):
            await network.listen(one.target, one.reached, one.own)

    def dsn(self, direct: str, process: str) -> str:
        """Return the connection URI for a process, from the direct one; it says who connects."""
        for one in self.postgres:
            direct = direct.replace(f"{LOOPBACK}:{one.own}", one.address)
        options = quote(f"-c {PROCESS_SETTING}={process}", safe="")
        return f"{direct}{'&' if '?' in direct else '?'}options={options}"

    @property
    def coordination(self) -> Mapping[str, str]:
        """Settings of a node that say who coordinates."""
        if not self.zookeeper:
            return {"coordinator": "postgres"}
        hosts = ",".join(one.address for one in self.zookeeper)
        return {"coordinator": "zookeeper", "zookeeper": hosts + CHROOT}


def numbered(name: str, group: list[int]) -> list[str]:
    """Return a name for each of a group; the name alone if there is one."""
    return [name] if len(group) == 1 else [f"{name}-{number}" for number in range(1, len(group) + 1)]


def free_ports(count: int) -> list[int]:
    """Return so many different ports that are free and are not given to outgoing connections."""
    draw = random.Random()
    ports: list[int] = []
    while len(ports) < count:
        port = choose_port(draw)
        if port not in ports:
            ports.append(port)
    return ports
