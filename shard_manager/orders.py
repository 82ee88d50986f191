"""Orders in force: what people have decided about the cluster. Part of the plan, so that every leader obeys them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

#: Of nodes that are drained or evicted, present or not: nodes with random names must not swell the plan for ever.
MAX_NAMED_NODES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A shard stays with `node`, while that can serve, until the instant `until` by the cluster's clock (UTC); None:
    until somebody moves it elsewhere."""

    node: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """The process `incarnation` of a node is given no shards, and its session `session` (see `View.sessions`) is ended
    by force. A later session of that process may live on, and a later process is like any other."""

    incarnation: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All orders in force.

    While `paused`, shards move only by a further order, or because their owner cannot serve. `pins` are by shard.
    `drained` nodes are given no shards until undrained, whatever process has the name. `evicted` are by node.
    """

    paused: bool = False
    pins: Mapping[int, Pin] = field(default_factory=lambda: MappingProxyType({}))
    drained: frozenset[str] = frozenset()
    evicted: Mapping[str, Eviction] = field(default_factory=lambda: MappingProxyType({}))

    def excludes(self, node: str, incarnation: int) -> bool:
        """Whether the process `incarnation` of `node` may be given no shards."""
        eviction = self.evicted.get(node)
        return node in self.drained or (eviction is not None and eviction.incarnation == incarnation)

    def without_expired(self, now: datetime, incarnations: Mapping[str, int]) -> "Orders":
        """These orders without pins whose time is over at `now`, and without evictions of processes that others have
        replaced; `incarnations` are those of the nodes that are here. Returns itself if nothing changes."""
        pins = {shard: pin for shard, pin in self.pins.items() if pin.until is None or pin.until > now}
        evicted = {
            node: eviction
            for node, eviction in self.evicted.items()
            if incarnations.get(node, eviction.incarnation) == eviction.incarnation
        }
        if len(pins) == len(self.pins) and len(evicted) == len(self.evicted):
            return self
        return replace(self, pins=pins, evicted=evicted)
