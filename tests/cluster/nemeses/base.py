"""What a fault is: a kind, what it needs of a cluster, and how it strikes and heals.

A new kind is a `Fault` that is given to `register` in any module of this package.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from tests.cluster.cluster import Cluster


class Need(StrEnum):
    """What a cluster has to consist of for a fault to be possible."""

    ZOOKEEPER = "zookeeper"
    """A ZooKeeper of its own that may be stopped."""
    ENSEMBLE = "ensemble"
    """Three servers of ZooKeeper."""
    PROXIES = "proxies"
    """Connections that lead through proxies."""
    STANDBY = "standby"
    """A synchronous standby of PostgreSQL."""
    FAKE_TIME = "fake_time"
    """A PostgreSQL whose clock can be set."""
    SMALL_DISK = "small_disk"
    """A PostgreSQL whose disk can be filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of the cluster that faults are measured by, in seconds."""

    lease_s: float
    """Lease of a worker."""
    session_s: float
    """Session of a node with its coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One planned fault."""

    at_s: float
    """After the start of the load."""
    fault: str
    """Its kind."""
    victim: int
    """Which of several victims: taken modulo their number."""
    hold_s: float
    """How long the fault stays in force."""

    @property
    def draw(self) -> random.Random:
        """A source of whatever else the fault has to draw; the same for the same blow."""
        return random.Random(self.victim)


Strike: TypeAlias = Callable[[Cluster, Blow], AbstractAsyncContextManager[Sequence[str]]]


def briefly(draw: random.Random, times: Times) -> float:
    """Hold a fault for up to two seconds."""
    return draw.uniform(0.0, 2.0)


def beyond_a_lease(draw: random.Random, times: Times) -> float:
    """Hold a fault for longer than a worker's lease."""
    return times.lease_s + draw.uniform(0.5, 2.5)


def around_a_session(draw: random.Random, times: Times) -> float:
    """Hold a fault for a time that may be shorter or longer than a node's session."""
    return draw.uniform(1.0, times.session_s + 2.5)


def beyond_a_session(draw: random.Random, times: Times) -> float:
    """Hold a fault until a node's session is surely over."""
    return times.session_s + draw.uniform(1.5, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault.

    `strike` is entered to strike and left, after the blow's time, to heal. It yields the names of what was hit, which
    may be nothing: then the fault did not strike. It must heal however it is left.
    """

    kind: str
    strike: Strike
    hold_s: Callable[[random.Random, Times], float] = briefly
    """Draws how long the fault stays in force."""
    needs: frozenset[Need] = frozenset()
    for_all: bool = False
    """Whether it hits all nodes at once: many of these in a row would leave nothing to be broken."""


REGISTRY: Final[dict[str, Fault]] = {}
"""All faults by their kind."""


def register(fault: Fault) -> Fault:
    """Make a fault known under its kind. Raises ValueError if the kind is taken."""
    if REGISTRY.setdefault(fault.kind, fault) is not fault:
        raise ValueError(f"there are two faults of the kind {fault.kind}")
    return fault


def offers(cluster: Cluster) -> frozenset[Need]:
    """Return what a cluster consists of."""
    site = cluster.site
    found = {
        Need.ZOOKEEPER: cluster.zookeeper is not None,
        Need.ENSEMBLE: cluster.zookeeper is not None and len(cluster.zookeeper.servers) > 1,
        Need.PROXIES: cluster.network is not None,
        Need.STANDBY: site.pair is not None,
        Need.FAKE_TIME: site.clock is not None,
        Need.SMALL_DISK: site.balloon is not None,
    }
    return frozenset(need for need, there in found.items() if there)


def possible(offered: frozenset[Need]) -> list[str]:
    """Return the kinds of all faults that need no more than what is offered, in a fixed order."""
    return sorted(kind for kind, fault in REGISTRY.items() if fault.needs <= offered)
