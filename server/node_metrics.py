"""What a node knows of its own place in the cluster, as metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.node_health import NodeHealth
from shard_manager.lease import Active, Fencing, Releasing, Stopping
from shard_manager.status import ManagerStatus


class NodeCollector(Collector):
    """Reads the health of a node and the `status` of its shard manager."""

    def __init__(self, health: NodeHealth, status: Callable[[], ManagerStatus]) -> None:
        self._health = health
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._status()
        leads = status.joined and status.leader == status.member.node
        yield GaugeMetricFamily("shardwheel_ready", "1 if /readyz is green, else 0.", self._health.ready().ok)
        yield GaugeMetricFamily("shardwheel_leader", "1 if this node leads, else 0.", leads)
        yield GaugeMetricFamily(
            "shardwheel_nodes", "Live nodes of the cluster that this node sees.", self._nodes(status)
        )
        yield GaugeMetricFamily(
            "shardwheel_plan_version", "Version of the plan that this node obeys.", status.plan_version
        )
        yield GaugeMetricFamily(
            "shardwheel_coordinator_trouble",
            "1 while this node retries something with the coordinator, else 0.",
            status.trouble is not None,
        )
        yield GaugeMetricFamily(
            "shardwheel_shard_leases", "Leases of shards that this node holds, served or not.", _leases(status)
        )

    def _nodes(self, status: ManagerStatus) -> int:
        return len({*status.members, status.member.node}) if status.joined else 0


def _leases(status: ManagerStatus) -> int:
    return sum(
        isinstance(state, Fencing | Active | Releasing) or (isinstance(state, Stopping) and state.lease is not None)
        for state in status.shards.values()
    )
