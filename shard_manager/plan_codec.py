"""The plan as text, the same for every coordinator: JSON with each node's shards as ranges, 18 kB at 1024 x 50."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from shard_manager.coordinator import MAX_SHARDS, Plan
from shard_manager.errors import PlanCorrupt
from shard_manager.orders import Eviction, Orders, Pin

FORMAT: Final = 1
_MAX_BIGINT: Final = 2**63 - 1


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
        "leader": plan.leader,
        "reason": plan.reason,
        **_orders_document(plan.orders),
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
    shards = _integer(document.get("shards"), "shards", 1, MAX_SHARDS)
    owners: dict[int, str] = {}
    for node, ranges in _texts(document, "owners").items():
        for shard in _shards_in(ranges, shards):
            if shard in owners:
                raise PlanCorrupt(f"shard {shard} has two owners, {owners[shard]!r} and {node!r}")
            owners[shard] = node
    leader = document.get("leader")
    reason = document.get("reason")
    if not isinstance(leader, str) or not isinstance(reason, str):
        raise PlanCorrupt("leader or reason is missing or not text")
    return Plan(
        version=_integer(document.get("version"), "version", 1, _MAX_BIGINT),
        shards=shards,
        owners=dict(sorted(owners.items())),
        orders=_orders(document, shards),
        leader=leader,
        reason=reason,
    )


def _orders_document(orders: Orders) -> dict[str, object]:
    seldom = {
        "pin_ends": {str(shard): pin.until.isoformat() for shard, pin in orders.pins.items() if pin.until is not None},
        "drained": sorted(orders.drained),
        "evicted": {node: [one.incarnation, one.session] for node, one in orders.evicted.items()},
    }
    return {
        "paused": orders.paused,
        "pins": {str(shard): pin.node for shard, pin in orders.pins.items()},
        **{name: value for name, value in seldom.items() if value},
    }


def _orders(document: Mapping[str, object], shards: int) -> Orders:
    """The orders; those that earlier releases did not know may be missing."""
    paused = document.get("paused")
    drained = document.get("drained", [])
    evicted = document.get("evicted", {})
    if not isinstance(paused, bool) or not isinstance(drained, list) or not isinstance(evicted, dict):
        raise PlanCorrupt("paused, drained or evicted is of the wrong type")
    ends = {_shard(shard, shards): _instant(end) for shard, end in _texts(document, "pin_ends", {}).items()}
    pins: dict[int, Pin] = {}
    for shard_text, node in _texts(document, "pins").items():
        shard = _shard(shard_text, shards)
        pins[shard] = Pin(node=node, until=ends.get(shard))
    return Orders(
        paused=paused,
        pins=dict(sorted(pins.items())),
        drained=frozenset(map(_text, drained)),
        evicted={node: _eviction(numbers) for node, numbers in sorted(evicted.items())},
    )


def _eviction(numbers: object) -> Eviction:
    if not isinstance(numbers, list) or len(numbers) != 2:
        raise PlanCorrupt(f"evicted holds {numbers!r}, not an incarnation and a session")
    incarnation, session = (_integer(number, "evicted", 0, _MAX_BIGINT) for number in numbers)
    return Eviction(incarnation=incarnation, session=session)


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise PlanCorrupt(f"{text!r} is not an instant") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise PlanCorrupt(f"drained holds {value!r}, not the name of a node")
    return value


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


def _integer(value: object, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PlanCorrupt(f"{name} is {value!r}, not a number from {low} to {high}")
    return value


def _texts(document: Mapping[str, object], name: str, default: object = None) -> dict[str, str]:
    value = document.get(name, default)
    if not isinstance(value, dict):
        raise PlanCorrupt(f"{name} is missing or not an object")
    texts: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise PlanCorrupt(f"{name} holds something other than text")
        texts[key] = text
    return texts
