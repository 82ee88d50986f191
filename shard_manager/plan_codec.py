"""The plan as text, the same for every coordinator: JSON with each node's shards as ranges, 18 kB at 1024 x 50."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from shard_manager.coordinator import MAX_SHARDS, Plan
from shard_manager.errors import PlanCorrupt

FORMAT: Final = 1


def encode(plan: Plan) -> str:
    """Write `plan` as text that `decode` reads back to an equal plan; equal plans give equal text."""
    shards_by_node: dict[str, list[int]] = {}
    for shard, node in plan.owners.items():
        shards_by_node.setdefault(node, []).append(shard)
    document = {
        "format": FORMAT,
        "version": plan.version,
        "shards": plan.shards,
        "owners": {node: _ranges(shards) for node, shards in shards_by_node.items()},
        "pins": {str(shard): node for shard, node in plan.pins.items()},
        "paused": plan.paused,
        "leader": plan.leader,
        "reason": plan.reason,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def decode(text: str | bytes) -> Plan:
    """Read what `encode` wrote. Raises `PlanCorrupt` for anything else, a newer format included."""
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanCorrupt(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PlanCorrupt("not a JSON object")
    if document.get("format") != FORMAT:
        raise PlanCorrupt(f"format {document.get('format')!r}; this node reads format {FORMAT}")
    shards = _integer(document, "shards", 1, MAX_SHARDS)
    owners: dict[int, str] = {}
    for node, ranges in _texts(document, "owners").items():
        for shard in _shards_in(ranges, shards):
            if shard in owners:
                raise PlanCorrupt(f"shard {shard} has two owners, {owners[shard]!r} and {node!r}")
            owners[shard] = node
    pins: dict[int, str] = {}
    for shard_text, node in _texts(document, "pins").items():
        pins[_shard(shard_text, shards)] = node
    paused = document.get("paused")
    leader = document.get("leader")
    reason = document.get("reason")
    if not isinstance(paused, bool) or not isinstance(leader, str) or not isinstance(reason, str):
        raise PlanCorrupt("paused, leader or reason is missing or of the wrong type")
    return Plan(
        version=_integer(document, "version", 1, 2**63 - 1),
        shards=shards,
        owners=dict(sorted(owners.items())),
        pins=dict(sorted(pins.items())),
        paused=paused,
        leader=leader,
        reason=reason,
    )


def _ranges(shards: Iterable[int]) -> str:
    parts: list[str] = []
    first = last = -2
    for shard in [*sorted(shards), MAX_SHARDS + 1]:
        if shard == last + 1:
            last = shard
            continue
        if first >= 0:
            parts.append(f"{first}-{last}" if last > first else str(first))
        first = last = shard
    return ",".join(parts)


def _shards_in(ranges: str, shards: int) -> Iterable[int]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        low = _shard(first, shards)
        high = _shard(last, shards) if dash else low
        if high < low:
            raise PlanCorrupt(f"shard range {part!r} runs backwards")
        yield from range(low, high + 1)


def _shard(text: str, shards: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SHARDS)) and int(text) < shards):
        raise PlanCorrupt(f"{text!r} is not a shard number below {shards}")
    return int(text)


def _integer(document: Mapping[str, object], name: str, low: int, high: int) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PlanCorrupt(f"{name} is {value!r}, not a number from {low} to {high}")
    return value


def _texts(document: Mapping[str, object], name: str) -> dict[str, str]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise PlanCorrupt(f"{name} is missing or not an object")
    texts: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise PlanCorrupt(f"{name} holds something other than text")
        texts[key] = text
    return texts
