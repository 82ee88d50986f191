"""Ends that other nodes want to hear of: told once, forgotten in time."""

from collections.abc import Sequence

import pytest

from server.engine.peer_news import WATCH_S, RemoteWatches
from server.engine.ports_peers import JobFinal, News
from server.engine.waiters import Waiters


class Peers:
    """Remembers what was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, News]] = []

    def tell_owner(self, shard: int, news: News) -> None:
        raise AssertionError

    def tell_node(self, node: str, news: News) -> None:
        self.told.append((node, news))

    def tell_all(self, news: News) -> None:
        raise AssertionError


class Setup:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 10) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.peers = Peers()
        self.waiters = Waiters()
        self.watches = RemoteWatches(self.waiters, self.peers, limit=limit)

    def told(self, finished: Sequence[int]) -> list[tuple[str, int]]:
        """Return whom the end of jobs was told to."""
        self.peers.told.clear()
        self.waiters.finished(finished)
        return sorted((node, news.job_id) for node, news in self.peers.told if isinstance(news, JobFinal))


async def test_each_node_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    local = setup.waiters.add(1)
    assert setup.watches.add("b", [1, 2]) == [1, 2]
    assert setup.watches.add("b", [2, 3]) == [3]
    assert setup.watches.add("c", [1]) == [1]
    assert setup.told([1]) == [("b", 1), ("c", 1)]
    assert await local.wait(0)
    assert setup.told([1]) == []
    assert setup.watches.add("b", [1]) == [1]
    assert len(setup.watches) == 3


def test_a_watch_that_is_not_repeated_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    setup.watches.add("b", [1, 2])
    setup.now += WATCH_S - 1
    setup.watches.add("b", [2])
    setup.now += 2
    assert setup.watches.add("c", [3]) == [3]
    assert setup.told([1, 2, 3]) == [("b", 2), ("c", 3)]
    assert not setup.waiters._waiting


def test_too_many_watches_push_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, limit=3)
    setup.watches.add("b", [1, 2, 3])
    setup.watches.add("b", [1])
    setup.watches.add("b", [4])
    assert len(setup.watches) == 3
    assert setup.told([1, 2, 3, 4]) == [("b", 1), ("b", 3), ("b", 4)]
