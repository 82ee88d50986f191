"""Turns the plain numbers of a node's engine, pools and ownership into metrics when a page is asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.domain.ending import Recheck
from server.domain.firing import SkipReason
from server.engine.engine import Engine
from server.engine.tally import Tally
from server.store.database import PoolLoad

_REAPED: Final = {
    Recheck.WORKER_LOST: "worker_lost",
    Recheck.TIMED_OUT: "timed_out",
    Recheck.OPEN: "undelivered",
    Recheck.NOT_STARTED: "not_started",
}


class EngineCollector(Collector):
    """Reads the engine of a node.

    `pools` returns the load of the connection pools by name, `news` what other nodes were told and what was dropped.
    """

    def __init__(
        self,
        engine: Engine,
        pools: Callable[[], Mapping[str, PoolLoad]],
        news: Callable[[], tuple[int, int]],
    ) -> None:
        self._engine = engine
        self._pools = pools
        self._news = news

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._ownership()
        yield from self._attempts()
        yield from self._firings()
        yield from self._workers()
        yield from self._database()
        told, dropped = self._news()
        yield _by(
            "shardwheel_peer_news", "Nudges and notices for other nodes, by what became of them.", "fate",
            {"told": told, "dropped": dropped},
        )  # fmt: skip

    def _ownership(self) -> Iterator[Metric]:
        epochs = self._engine.ownership.epochs
        yield GaugeMetricFamily("shardwheel_shards", "Shards of the cluster.", len(self._engine.ownership.partition_of))
        yield GaugeMetricFamily("shardwheel_shards_owned", "Shards that this node serves.", len(epochs))
        epoch = GaugeMetricFamily(
            "shardwheel_shard_epoch", "Epoch of each shard that this node serves.", labels=["shard"]
        )
        for shard, number in sorted(epochs.items()):
            epoch.add_metric([str(shard)], number)
        yield epoch

    def _attempts(self) -> Iterator[Metric]:
        engine = self._engine
        claimer, ender = engine.claimer, engine.ender
        yield CounterMetricFamily("shardwheel_claims", "Claim statements that were answered.", claimer.claims)
        yield CounterMetricFamily(
            "shardwheel_claimed_jobs", "Jobs that claims bound to a worker's slot.", claimer.claimed_jobs
        )
        yield CounterMetricFamily(
            "shardwheel_dispatched_jobs", "Of these, those that the worker's stream took.", claimer.dispatched_jobs
        )
        yield _histogram(
            "shardwheel_start_lateness_seconds", "From a job's due time to its claim, by the database clock.",
            claimer.lateness,
        )  # fmt: skip
        yield _histogram(
            "shardwheel_run_time_seconds", "From an attempt's hand-over by this node to its stored end.", ender.run_time
        )
        yield _by(
            "shardwheel_finishes", "Attempts that this node ended, by how they ended.", "outcome",
            {ending.value: count for ending, count in ender.endings.items()},
        )  # fmt: skip
        yield _by(
            "shardwheel_ended_attempts", "Attempts that this node ended, by what became of the job.", "state",
            {state.name.lower(): count for state, count in ender.ended_by_state.items()},
        )  # fmt: skip
        yield CounterMetricFamily(
            "shardwheel_retries", "Attempts that burned a try and went back to be tried again.", ender.retries
        )
        yield _by(
            "shardwheel_reaped_attempts", "Attempts that this node ended as the owner, by reason.", "reason",
            {_REAPED[recheck]: count for recheck, count in ender.by_recheck.items()},
        )  # fmt: skip
        yield _by(
            "shardwheel_results", "Results of workers by the answer that they got.", "ack",
            {status.value: count for status, count in engine.completer.acks.items()},
        )  # fmt: skip
        yield GaugeMetricFamily(
            "shardwheel_attempts_running", "Running attempts that this node looks after.", len(engine.registry)
        )

    def _firings(self) -> Iterator[Metric]:
        firer = self._engine.firer
        yield CounterMetricFamily("shardwheel_firings", "Firings that became jobs.", firer.fired_jobs)
        yield _by(
            "shardwheel_skipped_firings", "Firings that became no job, by reason.", "reason",
            {reason.value: firer.skipped_firings.get(reason, 0) for reason in SkipReason},
        )  # fmt: skip

    def _workers(self) -> Iterator[Metric]:
        sessions = self._engine.slots.sessions()
        yield GaugeMetricFamily("shardwheel_worker_streams", "Streams of workers to this node.", len(sessions))
        yield GaugeMetricFamily(
            "shardwheel_worker_slots_granted",
            "Attempts that the workers let this node have at the same time.",
            sum(sum(session.credit.values()) for session in sessions),
        )
        yield GaugeMetricFamily(
            "shardwheel_worker_slots_used",
            "Of these, those that are taken.",
            sum(sum(session.used.values()) for session in sessions),
        )

    def _database(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily(
            "shardwheel_database_connections", "Connections to PostgreSQL by pool and use.", labels=["pool", "use"]
        )
        waiting = GaugeMetricFamily(
            "shardwheel_database_waiting", "Statements that wait for a connection, by pool.", labels=["pool"]
        )
        for name, load in self._pools().items():
            connections.add_metric([name, "busy"], load.in_use)
            connections.add_metric([name, "idle"], load.size - load.in_use)
            waiting.add_metric([name], load.waiting)
        yield connections
        yield waiting


def _by(name: str, documentation: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _histogram(name: str, documentation: str, tally: Tally) -> HistogramMetricFamily:
    buckets, below = [], 0
    for bound, count in zip([*map(str, tally.bounds), "+Inf"], tally.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=tally.total)
