"""What a node's log says about its shards."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

ACQUIRED, LOST = "shard acquired", "shard lost"


@dataclass(frozen=True, slots=True, order=True)
class ShardEvent:
    """A node began to serve a shard (`ACQUIRED`), or ceased to (`LOST`). Instants are seconds since 1970."""

    at: float
    shard: int
    event: str
    node: str
    epoch: int


def read_log(path: Path) -> Iterator[ShardEvent]:
    """Events of one node."""
    for line in path.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut short by a kill
        if record.get("event") in (ACQUIRED, LOST):
            at = datetime.fromisoformat(record["timestamp"]).timestamp()
            yield ShardEvent(at, record["shard"], record["event"], record["node"], record["epoch"])


def gaps(events: Iterable[ShardEvent], since: float) -> dict[int, float]:
    """Of each shard the longest time in seconds from a loss to the next acquisition; infinite if there was none."""
    found: dict[int, float] = {}
    lost: dict[int, float] = {}
    for event in sorted(events):
        if event.at < since:
            continue
        if event.event == LOST:
            lost[event.shard] = event.at
        elif event.shard in lost:
            gap = event.at - lost.pop(event.shard)
            found[event.shard] = max(gap, found.get(event.shard, 0.0))
    return found | dict.fromkeys(lost, float("inf"))
