"""The load of the whole cluster as metrics. One node tells, the leader, so that sums over nodes are right."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.domain.diagnosis import Holder, HolderKind
from server.store.errors import StoreError
from server.store.load_sampler import LoadSampler
from server.store.status import LoadSample

log = logging.getLogger(__name__)

MAX_AGE_S: Final = 10.0
# Handlers that have series of their own, those with the most due jobs; the others share one.
MAX_HANDLERS: Final = 200
OTHERS: Final = ("", "(others)")


class LoadMetrics(Collector):
    """Samples at a scrape, every ten seconds at most. `leads` says whether this node is the one to tell, `holders`
    returns what keeps old row versions alive."""

    def __init__(
        self, sampler: LoadSampler, leads: Callable[[], bool], holders: Callable[[], Awaitable[Sequence[Holder]]]
    ) -> None:
        self._sampler = sampler
        self._leads = leads
        self._holders = holders
        self._sample: LoadSample | None = None
        self._held: Sequence[Holder] = ()
        self._names: dict[int, tuple[str, str]] = {}
        self._away = False

    async def refresh(self) -> None:
        """Look at the load, if this node is to tell of it. A database that is away is logged once."""
        sample = self._sample = None
        if not self._leads():
            return
        try:
            sample = await self._sampler.sample(MAX_AGE_S)
            self._held = await self._holders()
            shown = sorted(sample.due, key=lambda handler_id: -sample.due[handler_id].count)[:MAX_HANDLERS]
            shown += sorted(sample.published.keys() - set(shown))[:MAX_HANDLERS]
            if not set(shown) <= self._names.keys():
                self._names |= await self._sampler.handler_names(shown)
            if len(self._names) > 2 * MAX_HANDLERS:
                self._names = {number: self._names[number] for number in shown if number in self._names}
        except StoreError as error:
            if not self._away:
                log.warning("load not sampled", extra={"error": str(error)})
            self._away = True
            return
        self._away = False
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        """Yield the latest sample's metrics; none if this node is not the one to tell."""
        sample = self._sample
        if sample is None:
            return
        yield GaugeMetricFamily("shardwheel_jobs_pending", "Pending jobs of the cluster, an estimate.", sample.pending)
        yield GaugeMetricFamily("shardwheel_jobs_running", "Running jobs of the cluster.", sample.running)
        yield GaugeMetricFamily("shardwheel_schedules", "Schedules of the cluster, an estimate.", sample.schedules)
        yield GaugeMetricFamily("shardwheel_workers", "Workers of the cluster with a lease.", sample.workers)
        due = GaugeMetricFamily(
            "shardwheel_jobs_due", "Due jobs of the cluster that wait, by handler.", labels=["namespace", "handler"]
        )
        oldest = GaugeMetricFamily(
            "shardwheel_jobs_oldest_due_seconds",
            "How long the oldest of them has waited.",
            labels=["namespace", "handler"],
        )
        for (namespace, handler), (count, waited_s) in self._by_name(sample).items():
            due.add_metric([namespace, handler], count)
            oldest.add_metric([namespace, handler], waited_s)
        yield due
        yield oldest
        yield from self._published(sample)
        yield from self._horizon()

    def _horizon(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "shardwheel_database_oldest_xmin_transactions",
            "Transactions begun since the oldest snapshot that PostgreSQL keeps row versions for, by its holder.",
            labels=["holder"],
        )
        for kind in HolderKind:
            age.add_metric([kind.value], max((one.age for one in self._held if one.kind is kind), default=0))
        yield age
        yield GaugeMetricFamily(
            "shardwheel_database_oldest_transaction_seconds",
            "How long the oldest open transaction has been open.",
            max((one.open_s for one in self._held if one.open_s is not None), default=0.0),
        )

    def _published(self, sample: LoadSample) -> Iterator[Metric]:
        found: dict[tuple[str, str], tuple[int, float]] = {}
        for handler_id, one in sample.published.items():
            name = self._names.get(handler_id, OTHERS)
            count, waited_s = found.get(name, (0, 0.0))
            found[name] = count + one.count, max(waited_s, (sample.now - one.oldest).total_seconds())
        published = GaugeMetricFamily(
            "shardwheel_jobs_published",
            "Jobs in the topics of their handlers that no consumer has started.",
            labels=["namespace", "handler"],
        )
        oldest = GaugeMetricFamily(
            "shardwheel_jobs_oldest_published_seconds",
            "How long the oldest of them has been there.",
            labels=["namespace", "handler"],
        )
        for (namespace, handler), (count, waited_s) in found.items():
            published.add_metric([namespace, handler], count)
            oldest.add_metric([namespace, handler], waited_s)
        yield published
        yield oldest

    def _by_name(self, sample: LoadSample) -> dict[tuple[str, str], tuple[int, float]]:
        found: dict[tuple[str, str], tuple[int, float]] = {}
        ranked = sorted(sample.due.items(), key=lambda one: -one[1].count)
        for rank, (handler_id, one) in enumerate(ranked):
            name = self._names.get(handler_id, OTHERS) if rank < MAX_HANDLERS else OTHERS
            count, waited_s = found.get(name, (0, 0.0))
            found[name] = count + one.count, max(waited_s, (sample.now - one.oldest).total_seconds())
        return found
