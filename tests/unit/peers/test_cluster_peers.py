"""Whom a node tells what: owners by the plan, never itself, and nobody who has left."""

from collections.abc import Sequence

import pytest

from server.engine.ports_peers import JobFinal, News
from server.peers.channels import PeerChannels, UnknownPeer
from server.peers.cluster_peers import ClusterPeers
from tests.support.waiting import eventually


class Cluster:
    """Nodes `a` (this one) and others, and what they were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}
        self.owners: dict[int, str] = {0: "a", 1: "b", 2: "gone"}
        self.told: list[tuple[str, int]] = []

        async def send(peers: ClusterPeers, node: str, news: Sequence[News]) -> None:
            if node not in self.members:
                raise UnknownPeer(node)
            self.told += [(node, one.job_id) for one in news if isinstance(one, JobFinal)]

        monkeypatch.setattr(ClusterPeers, "_send", send)
        self.peers = ClusterPeers("a", PeerChannels("a", lambda: self.members), self.owners.get)


async def test_owners_by_the_plan_are_told_and_the_node_itself_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    for shard in range(4):
        cluster.peers.tell_owner(shard, JobFinal(shard))
    cluster.peers.tell_all(JobFinal(9))
    await eventually(lambda: cluster.peers.news_counts() == (3, 1))
    assert sorted(cluster.told) == [("b", 1), ("b", 9), ("c", 9)]
    assert await cluster.peers.handler_view(0, 1) is None
    assert await cluster.peers.handler_view(3, 1) is None
    assert await cluster.peers.handler_view(2, 1) is None
    await cluster.peers.close()
    cluster.peers.tell_node("b", JobFinal(2))
    assert cluster.peers._outboxes == {}


async def test_nodes_that_come_and_go_under_ever_new_names_leave_nothing_but_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch)
    for number in range(20):
        name = f"node-{number}"
        cluster.members[name] = "127.0.0.1:9"
        cluster.peers.tell_node(name, JobFinal(number))
        await eventually(lambda: cluster.peers.news_counts() == (number + 1, 0))  # noqa: B023 - awaited in this turn
        await eventually(lambda: all(one.idle for one in cluster.peers._outboxes.values()))
        del cluster.members[name]
    assert len(cluster.peers._outboxes) <= 2
    await cluster.peers.close()
