"""What a node publishes to Kafka, as metrics."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PublishCounts(Protocol):
    """What a publisher counts."""

    published: int
    returned: int

    @property
    def connected(self) -> bool:
        """Whether the broker answers."""


class PublishCollector(Collector):
    """Reads a publisher when a page is asked for."""

    def __init__(self, counts: PublishCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        counts = self._counts
        yield GaugeMetricFamily("shardwheel_kafka_connected", "Whether Kafka answers this node.", int(counts.connected))
        yield CounterMetricFamily("shardwheel_kafka_published_jobs", "Jobs that were sent to Kafka.", counts.published)
        yield CounterMetricFamily(
            "shardwheel_kafka_returned_jobs",
            "Of these, jobs that went back to pending because no broker confirmed them.",
            counts.returned,
        )
