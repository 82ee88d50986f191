"""The other nodes, as this one talks to them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import grpc.aio

from server.domain.handler import HandlerView
from server.engine.ports_peers import News
from server.peers.channels import PeerChannels, UnknownPeer
from server.peers.messages import request_of
from server.peers.outbox import Outbox
from shardwheel.v1 import peer_service_pb2 as pb
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.peer_service_pb2_grpc import PeerServiceStub

TELL_TIMEOUT_S: Final = 1.5
# Somebody waits for the answer.
ASK_TIMEOUT_S: Final = 0.3


class ClusterPeers:
    """Implements the engine's `Peers` and the API's `Owners` by calls of PeerService.

    `owner_of` returns the node that should serve a shard, None if none is known. `watched` is told of jobs whose end
    other nodes report from now on: an end before may have been missed.
    """

    def __init__(self, node: str, channels: PeerChannels, owner_of: Callable[[int], str | None]) -> None:
        self._node = node
        self._channels = channels
        self._owner_of = owner_of
        self._outboxes: dict[str, Outbox] = {}
        self._past = (0, 0)
        """The counts of outboxes that are there no more."""
        self._closed = False
        self.watched: Callable[[Sequence[int]], None] = lambda job_ids: None

    def news_counts(self) -> tuple[int, int]:
        """Return how many pieces of news other nodes have taken, and how many were dropped."""
        outboxes = self._outboxes.values()
        told, dropped = self._past
        return told + sum(one.sent for one in outboxes), dropped + sum(one.dropped for one in outboxes)

    def tell_owner(self, shard: int, news: News) -> None:
        """Tell the node that should serve a shard, unless it is this one."""
        owner = self._owner_of(shard)
        if owner is not None:
            self.tell_node(owner, news)

    def tell_node(self, node: str, news: News) -> None:
        """Tell one node."""
        if node == self._node or self._closed:
            return
        outbox = self._outboxes.get(node)
        if outbox is None:
            self._forget_departed()
            outbox = self._outboxes[node] = Outbox(node, self._send)
        outbox.put(news)

    def tell_all(self, news: News) -> None:
        """Tell every other node."""
        for node in self._channels.names():
            self.tell_node(node, news)

    async def handler_view(self, shard: int, handler_id: int) -> HandlerView | None:
        """Return what the owner of a shard sees of a handler's workers.

        None if the owner is this node, is not known, or does not answer soon.
        """
        owner = self._owner_of(shard)
        if owner is None or owner == self._node:
            return None
        request = pb.GetHandlerViewRequest(handler_id=handler_id, shard=shard)
        try:
            view = await self._channels.call(
                owner, PeerServiceStub, lambda peer: peer.GetHandlerView, request, timeout_s=ASK_TIMEOUT_S
            )
        except (UnknownPeer, grpc.aio.AioRpcError):
            return None
        if not view.serves_shard:
            return None
        return HandlerView(workers=view.workers, slots=view.slots, free=view.free, published=view.published)

    async def activities(self) -> dict[str, Activity | None]:
        """Return what each other live node did lately, None for one that does not answer soon."""
        nodes = self._channels.names()
        return dict(zip(nodes, await asyncio.gather(*map(self._activity, nodes)), strict=True))

    async def close(self) -> None:
        """Tell nothing more."""
        self._closed = True
        outboxes, self._outboxes = self._outboxes, {}
        await asyncio.gather(*(outbox.close() for outbox in outboxes.values()))

    async def _activity(self, node: str) -> Activity | None:
        request = pb.GetNodeActivityRequest()
        try:
            answer: Activity = await self._channels.call(
                node, PeerServiceStub, lambda peer: peer.GetNodeActivity, request, timeout_s=ASK_TIMEOUT_S
            )
        except (UnknownPeer, grpc.aio.AioRpcError):
            return None
        return answer

    def _forget_departed(self) -> None:
        """Drop the outboxes of nodes that have left: names of nodes may never come back."""
        there = set(self._channels.names())
        for node in [node for node, outbox in self._outboxes.items() if node not in there and outbox.idle]:
            outbox = self._outboxes.pop(node)
            self._past = (self._past[0] + outbox.sent, self._past[1] + outbox.dropped)

    async def _send(self, node: str, news: Sequence[News]) -> None:
        request = request_of(self._node, news)
        answer = await self._channels.call(
            node, PeerServiceStub, lambda peer: peer.Tell, request, timeout_s=TELL_TIMEOUT_S
        )
        if answer.newly_watched_jobs:
            self.watched(answer.newly_watched_jobs)
