"""Diagnose: looks at the database and the cluster, and has what it sees judged."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from server.api.activity import ClusterActivity
from server.api.admin_status import Answering, status_message
from server.api.convert import timestamp
from server.domain.diagnosis import ClusterFacts, Finding, HandlerFacts, Severity, ShardFacts
from server.domain.diagnosis_cluster import clock_findings, cluster_findings, handler_findings
from server.domain.diagnosis_database import (
    day_findings,
    due_index_findings,
    plan_findings,
    schema_findings,
    settings_findings,
    transaction_findings,
    upkeep_findings,
)
from server.engine.clock import DatabaseClock
from server.store import diagnosis, shards
from server.store.catalog import Catalog
from server.store.coordination import read_cluster_state
from server.store.database import Database
from server.store.errors import Refused, StoreError
from server.store.horizon import oldest_holders
from server.store.load_sampler import LoadSampler
from server.store.migrate import VERSION
from server.store.partitions import Retention
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1 import diagnosis_pb2

Check: TypeAlias = Callable[[], Awaitable[list[Finding]]]

# Of the first look: a database that does not answer it is away, and nothing else is asked of it.
REACH_S: Final = 3.0
# Of one check; longer than a statement may take, so that its own error is told.
CHECK_S: Final = 8.0
# Handlers with due jobs that are looked at: those whose oldest has waited longest.
MAX_HANDLERS: Final = 100
MAX_FINDINGS: Final = 500
# Connections of a node beside its pools: those of the coordinator.
OTHER_CONNECTIONS: Final = 2

_SEVERITIES: Final = {
    Severity.INFO: diagnosis_pb2.Finding.INFO,
    Severity.WARNING: diagnosis_pb2.Finding.WARNING,
    Severity.CRITICAL: diagnosis_pb2.Finding.CRITICAL,
}


class Doctor:
    """Looks through one node's eyes. `connections` are those of a node's pools, `retention` is what it keeps to."""

    def __init__(
        self,
        *,
        database: Database,
        partitions: int,
        catalog: Catalog,
        clock: DatabaseClock,
        answering: Answering,
        activity: ClusterActivity,
        sampler: LoadSampler,
        retention: Retention,
        connections: int,
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._catalog = catalog
        self._clock = clock
        self._answering = answering
        self._activity = activity
        self._sampler = sampler
        self._retention = retention
        self._connections = connections

    async def diagnose(self) -> diagnosis_pb2.Diagnosis:
        """Look at everything. What cannot be looked at is told as such."""
        findings: list[Finding] = []
        troubles: dict[str, str] = {}
        away = ""
        for name, check in self._checks().items():
            if away:
                troubles[name] = away
                continue
            try:
                async with asyncio.timeout(CHECK_S):
                    findings += await check()
                troubles[name] = ""
            except TimeoutError:
                troubles[name] = f"took longer than {CHECK_S:g} s"
            except StoreError as error:
                troubles[name] = str(error)
                # What was refused says nothing of the other checks.
                away = "" if isinstance(error, Refused) else str(error)
        findings.sort(key=lambda one: -one.severity)
        return diagnosis_pb2.Diagnosis(
            answered_by=self._answering.node,
            now=timestamp(self._clock.now()),
            checks=[diagnosis_pb2.DiagnosisCheck(check=name, trouble=trouble) for name, trouble in troubles.items()],
            findings=map(_message, findings[:MAX_FINDINGS]),
        )

    def _checks(self) -> Mapping[str, Check]:
        return {
            "schema": self._schema,
            "settings": self._settings,
            "plans": self._plans,
            "autovacuum": self._autovacuum,
            "transactions": self._transactions,
            "partitions": self._days,
            "clock": self._ahead,
            "shards": self._shards,
            "handlers": self._handlers,
        }

    async def _schema(self) -> list[Finding]:
        state = await read_cluster_state(self._database, timeout=REACH_S)
        return list(schema_findings(state.version, VERSION, await diagnosis.invalid_indexes(self._database)))

    async def _settings(self) -> list[Finding]:
        facts = await diagnosis.setting_facts(self._database)
        nodes = len(self._answering.cluster.members())
        return list(settings_findings(facts, nodes, self._connections + OTHER_CONNECTIONS))

    async def _plans(self) -> list[Finding]:
        plans = await diagnosis.plan_facts(self._database, self._partitions)
        indexes = await diagnosis.due_indexes(self._database)
        return [*plan_findings(plans), *due_index_findings(plans, indexes)]

    async def _autovacuum(self) -> list[Finding]:
        facts = await diagnosis.setting_facts(self._database)
        return list(upkeep_findings(facts.autovacuum, await diagnosis.table_facts(self._database)))

    async def _transactions(self) -> list[Finding]:
        facts = await diagnosis.setting_facts(self._database)
        holders = await oldest_holders(self._database)
        return list(transaction_findings(holders, sees_sessions=facts.sees_sessions))

    async def _days(self) -> list[Finding]:
        return list(day_findings(await diagnosis.day_facts(self._database, self._retention)))

    async def _ahead(self) -> list[Finding]:
        activity = await self._activity.message()
        ahead = {
            one.node: one.clock_ahead.ToTimedelta().total_seconds()
            for one in activity.nodes
            if one.HasField("clock_ahead")
        }
        ahead[self._answering.node] = await diagnosis.clock_ahead_s(self._database)
        return list(clock_findings(ahead, activity.missing_nodes))

    async def _shards(self) -> list[Finding]:
        load = await self._sampler.sample(0.0)
        rows = await shards.list_shards(self._database)
        return list(cluster_findings(_cluster_facts(status_message(self._answering, rows, load))))

    async def _handlers(self) -> list[Finding]:
        load = await self._sampler.sample(0.0)
        longest = sorted(load.due, key=lambda handler_id: load.due[handler_id].oldest)[:MAX_HANDLERS]
        names = await self._sampler.handler_names(longest)
        live = await diagnosis.live_slots(self._database)
        facts = []
        for handler_id in longest:
            handler = await self._catalog.handler_by_id(handler_id)
            if handler is None or handler_id not in names:
                continue
            workers, slots = live.get(names[handler_id], (0, 0))
            facts.append(
                HandlerFacts(
                    name="/".join(names[handler_id]),
                    paused=handler.paused,
                    due=load.due[handler_id].count,
                    waited_s=(load.now - load.due[handler_id].oldest).total_seconds(),
                    workers=workers,
                    slots=slots,
                    running=load.running_by_handler.get(handler_id, 0),
                )
            )
        return list(handler_findings(facts))


def _seconds_since(status: pb.GetStatusResponse, shard: pb.ShardStatus) -> float | None:
    if not shard.HasField("transition_since"):
        return None
    return (status.now.ToNanoseconds() - shard.transition_since.ToNanoseconds()) / 1e9


def _cluster_facts(status: pb.GetStatusResponse) -> ClusterFacts:
    return ClusterFacts(
        leader=status.leader,
        trouble=status.trouble,
        nodes=[(node.node, node.state) for node in status.nodes],
        shards=[
            ShardFacts(
                shard=shard.shard,
                state=shard.state,
                waiting_for=shard.waiting_for,
                for_s=_seconds_since(status, shard),
            )
            for shard in status.shards
            if shard.state != "serving"
        ],
        shard_count=status.shard_count,
        paused=status.paused,
    )


def _message(finding: Finding) -> diagnosis_pb2.Finding:
    return diagnosis_pb2.Finding(
        severity=_SEVERITIES[finding.severity],
        check=finding.check,
        subject=finding.subject,
        summary=finding.summary,
        remedy=finding.remedy,
    )
