"""What the shard manager reports, as metrics and as the trouble that a start waits for."""

from prometheus_client import Counter

from server.observe.metrics import Metrics
from shard_manager.events import (
    Cause,
    Drained,
    FenceRefusal,
    LeaderChanged,
    ManagerEvent,
    NodeEvicted,
    OrderObeyed,
    PlanWritten,
    SessionEnded,
    SessionOpened,
    ShardAcquired,
    ShardLost,
    ShardReleased,
    TroubleBegan,
    TroubleOver,
)


class ManagerObserver:
    """The observer of a `ShardManager`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._troubles: dict[str, Exception] = {}

    @property
    def trouble(self) -> Exception | None:
        """The error that a loop of the manager retries; the rounds' first."""
        return self._troubles.get("round") or next(iter(self._troubles.values()), None)

    def __call__(self, event: ManagerEvent) -> None:
        """Take in an event."""
        metrics = self._metrics
        match event:
            case ShardAcquired():
                metrics.fence_ins.labels("accepted").inc()
                self._changed("acquired", event.cause)
            case ShardLost():
                self._changed("lost", event.cause)
            case ShardReleased():
                self._changed("released", Cause.PLAN)
            case FenceRefusal():
                metrics.fence_ins.labels("refused").inc()
            case SessionOpened():
                metrics.sessions.labels("opened").inc()
            case SessionEnded():
                metrics.sessions.labels("lost").inc()
            case Drained():
                metrics.sessions.labels("drained").inc()
            case LeaderChanged():
                metrics.leader_changes.inc()
            case PlanWritten():
                metrics.plans_written.inc()
                metrics.planned_moves.inc(event.moves)
            case OrderObeyed():
                metrics.orders.inc()
            case NodeEvicted():
                metrics.evictions.inc()
            case TroubleBegan():
                self._troubles[event.doing] = event.error
                metrics.troubles.labels(event.doing).inc()
            case TroubleOver():
                self._troubles.pop(event.doing, None)
            case _:
                return

    def _changed(self, change: str, cause: Cause) -> None:
        counter: Counter = self._metrics.ownership_changes
        counter.labels(change, cause.value.replace(" ", "_")).inc()
