"""Jobs per second of each node, over the last second: a finished job counts for the node that serves its shard."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

_WINDOW_S: Final = 1.0


class NodeRates:
    """Fed now and then with totals."""

    def __init__(self) -> None:
        self._last: Counter[int] = Counter()
        self._gained: deque[tuple[float, Counter[str]]] = deque()

    def note(self, completed: Mapping[int, int], owners: Mapping[int, str], now_s: float) -> None:
        """`completed` jobs by shard so far; `now_s` is by any monotonic clock."""
        gained: Counter[str] = Counter()
        for shard, count in completed.items():
            if count > self._last[shard]:
                gained[owners.get(shard, "")] += count - self._last[shard]
        self._last = Counter(completed)
        self._gained.append((now_s, gained))
        while self._gained[0][0] <= now_s - _WINDOW_S:
            self._gained.popleft()

    def of(self, node: str) -> float:
        """Jobs per second of a node."""
        return sum(gained[node] for _, gained in self._gained) / _WINDOW_S
