"""The numbers behind /metrics: one registry of a node, passed on from the composition root.

Names, units and types go by the conventions of Prometheus. What happens often is counted as plain numbers where it
happens and read when a page is asked for (`engine_metrics`); what happens seldom is counted here.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

_CALL_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
_LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """The registry, and the counters of what happens seldom. Labels are bounded: causes, methods, codes."""

    def __init__(self, *, node: str, version: str) -> None:
        # A second series for each counter, with the time of its first use, serves nobody here.
        without_created: Callable[[], None] = disable_created_metrics
        without_created()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Info("shardwheel_node", "This node.", registry=registry).info({"node": node, "version": version})
        self.ownership_changes = Counter(
            "shardwheel_ownership_changes",
            "Shards that this node came to own or ceased to own, by cause.",
            ("change", "cause"),
            registry=registry,
        )
        self.fence_ins = Counter(
            "shardwheel_fence_ins",
            "Leases that PostgreSQL accepted as fence or refused as too old.",
            ("outcome",),
            registry=registry,
        )
        self.sessions = Counter(
            "shardwheel_coordinator_sessions",
            "Sessions with the coordinator that were opened, lost, or ended by a drain.",
            ("event",),
            registry=registry,
        )
        self.leader_changes = Counter(
            "shardwheel_leader_changes", "Changes of the leader that this node saw.", registry=registry
        )
        self.plans_written = Counter(
            "shardwheel_plans_written", "Plans that this node wrote as the leader.", registry=registry
        )
        self.planned_moves = Counter(
            "shardwheel_planned_moves", "Shards that those plans gave to another node.", registry=registry
        )
        self.orders = Counter(
            "shardwheel_orders", "Orders of operators that this node carried out as the leader.", registry=registry
        )
        self.evictions = Counter(
            "shardwheel_evictions", "Sessions of other nodes that this node ended for an order.", registry=registry
        )
        self.troubles = Counter(
            "shardwheel_coordinator_troubles",
            "Streaks of failures of a loop of the shard manager.",
            ("loop",),
            registry=registry,
        )
        self.loop_lag = Histogram(
            "shardwheel_event_loop_lag_seconds",
            "How much later than asked the event loop woke a sleeper.",
            buckets=_LAG_BOUNDS_S,
            registry=registry,
        )
        self._calls = Histogram(
            "shardwheel_grpc_call_seconds",
            "Calls of the API by method; streams count when they end.",
            ("method",),
            buckets=_CALL_BOUNDS_S,
            registry=registry,
        )
        self._codes = Counter(
            "shardwheel_grpc_calls", "Calls of the API by method and status.", ("method", "code"), registry=registry
        )
        # A series that is there from the start is not missed by an alert on its growth.
        for event in ("opened", "lost"):
            self.sessions.labels(event)
        for loop in ("heartbeat", "round"):
            self.troubles.labels(loop)
        for outcome in ("accepted", "refused"):
            self.fence_ins.labels(outcome)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """Count a call; the observer of `server.api.interceptor`."""
        method = method.removeprefix("/shardwheel.v1.")
        self._codes.labels(method, code).inc()
        self._calls.labels(method).observe(seconds)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the format that the Accept header asks for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind
