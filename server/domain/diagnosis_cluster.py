"""What is wrong with the cluster and its workers: facts in, findings out."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from server.domain.diagnosis import ClusterFacts, Finding, HandlerFacts, Severity, span_text

# A shard changes its owner in less than that, unless something is wrong.
STUCK_S: Final = 30.0
WAITED_S: Final = 60.0
WAITED_LONG_S: Final = 600.0
# With fewer shards for each node, one of several may have none.
SHARDS_PER_NODE: Final = 8
CLOCK_INFO_S: Final = 1.0
CLOCK_WARNING_S: Final = 30.0

_NODE_REMEDIES: Final = {
    "unhealthy": (Severity.WARNING, "it has no answer from the database; see its /readyz and its log"),
    "gone": (Severity.CRITICAL, "start it again; its shards go to others when its session is over"),
    "evicted": (Severity.WARNING, "restart it, then shardctl undrain"),
    "drained": (Severity.INFO, "shardctl undrain, when it may have shards again"),
}


def cluster_findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Judge nodes, shards and the coordinator."""
    if not facts.leader:
        yield Finding(
            severity=Severity.CRITICAL, check="shards",
            summary="no node leads: shards of a node that dies now are served by nobody",
            remedy="see whether the coordinator answers; nodes elect a leader by themselves when it does",
        )  # fmt: skip
    if facts.trouble:
        yield Finding(
            severity=Severity.WARNING, check="shards", subject="coordinator",
            summary=f"the node that answers has trouble with it: {facts.trouble}",
            remedy="bring the coordinator back; shards that are held are served on meanwhile",
        )  # fmt: skip
    for node, state in facts.nodes:
        if state in _NODE_REMEDIES:
            severity, remedy = _NODE_REMEDIES[state]
            yield Finding(
                severity=severity, check="shards", subject=f"node {node}", summary=f"it is {state}", remedy=remedy
            )
    yield from _shard_findings(facts)
    serving = sum(state == "up" for _, state in facts.nodes)
    if serving > 1 and facts.shard_count < SHARDS_PER_NODE * serving:
        yield Finding(
            severity=Severity.INFO, check="settings", subject="shards",
            summary=f"{facts.shard_count} shards on {serving} nodes: some may have much less to do than others",
            remedy=f"{SHARDS_PER_NODE} shards for each node are enough; their number is fixed, so use fewer nodes",
        )  # fmt: skip


def _shard_findings(facts: ClusterFacts) -> Iterator[Finding]:
    for shard in facts.shards:
        stuck = shard.for_s is not None and shard.for_s >= STUCK_S
        since = "" if shard.for_s is None else f" for {shard.for_s:.0f} s"
        served = shard.state == "moving"
        yield Finding(
            severity=Severity.INFO if not stuck else Severity.WARNING if served else Severity.CRITICAL,
            check="shards", subject=f"shard {shard.shard}",
            summary=f"it has been {shard.state}{since}; it waits for {shard.waiting_for}",
            remedy="look at that node's log; if it hangs: shardctl evict" if stuck else "nothing: that takes seconds",
        )  # fmt: skip
    if facts.paused:
        yield Finding(
            severity=Severity.INFO, check="shards",
            summary="rebalancing is paused: nodes that join get no shards",
            remedy="shardctl resume-rebalance",
        )  # fmt: skip


def clock_findings(ahead: Mapping[str, float], silent: Iterable[str]) -> Iterator[Finding]:
    """Judge for how many seconds the clocks of nodes are ahead of the database's; `silent` nodes did not answer."""
    for node, seconds in sorted(ahead.items()):
        if abs(seconds) < CLOCK_INFO_S:
            continue
        way = "ahead of" if seconds > 0 else "behind"
        yield Finding(
            severity=Severity.WARNING if abs(seconds) >= CLOCK_WARNING_S else Severity.INFO,
            check="clock", subject=f"node {node}",
            summary=f"its clock is {span_text(abs(seconds))} {way} the database's; jobs go by the latter, logs do not",
            remedy="keep the clocks in step with NTP, that of the database first",
        )  # fmt: skip
    for node in silent:
        yield Finding(
            severity=Severity.WARNING, check="clock", subject=f"node {node}",
            summary="it does not answer the node that looks",
            remedy="see whether nodes reach each other at the addresses that they advertise, and the log of that node",
        )  # fmt: skip


def handler_findings(handlers: Iterable[HandlerFacts]) -> Iterator[Finding]:
    """Judge handlers that have due jobs."""
    for one in handlers:
        waiting = f"{one.due} due jobs, the oldest for {one.waited_s:.0f} s"
        if one.paused:
            yield Finding(
                severity=Severity.INFO, check="handlers", subject=one.name,
                summary=f"it is paused, with {waiting}",
                remedy="shardctl handlers resume",
            )  # fmt: skip
        elif not one.workers:
            yield Finding(
                severity=Severity.CRITICAL if one.waited_s >= WAITED_S else Severity.WARNING,
                check="handlers", subject=one.name,
                summary=f"no live worker runs it; {waiting}",
                remedy="start workers that register it in this namespace; is the name spelled the same?",
            )  # fmt: skip
        elif one.waited_s >= WAITED_LONG_S:
            yield Finding(
                severity=Severity.WARNING, check="handlers", subject=one.name,
                summary=f"{waiting}; {one.running} of {one.slots} slots of {one.workers} workers are busy",
                remedy="start more workers, or raise max_concurrency" if one.running >= one.slots
                else "slots are free: do the jobs wait behind a concurrency key? shardctl jobs get says why",
            )  # fmt: skip
