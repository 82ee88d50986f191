"""Channels to the other nodes, by name. Where a node is reached is what it tells the coordinator about itself."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub = TypeVar("Stub")

# Calls under way to a node that has left may go on so long.
CLOSE_GRACE_S: Final = 5.0
_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    # The limit of what a node takes in, see `ServerLimits`; answers may be pages of jobs.
    ("grpc.max_send_message_length", 6 * 1024 * 1024),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # A peer that vanished without a word is noticed within 20 s; servers allow a ping every 10 s.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A node that comes back is reached again within about a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each caller decides itself whether a call may be repeated.
    ("grpc.enable_retries", 0),
    # Nodes reach each other directly, whatever the environment says about proxies to the outside.
    ("grpc.enable_http_proxy", 0),
    # Connections and their back-off are of this channel alone.
    ("grpc.use_local_subchannel_pool", 1),
)


class UnknownPeer(Exception):
    """There is no such node at present, or it has left while it was called."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node!r} is not a member of the cluster at present")
        self.node = node


class PeerChannels:
    """Channels to all other nodes, opened by the first call and closed when a node leaves or moves.

    `members` returns the addresses of the live nodes by name; `node` is this node, to which there is no channel.
    `credentials` returns what connections use for TLS, None for none; channels are opened anew once it returns another
    object. `authorization` is what every call carries in the header of that name. For use from one event loop.
    """

    def __init__(
        self,
        node: str,
        members: Callable[[], Mapping[str, str]],
        *,
        credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
        authorization: str = "",
    ) -> None:
        self._node = node
        self._members = members
        self._credentials = credentials
        self._metadata = (("authorization", authorization),) if authorization else ()
        self._peers: dict[str, _Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def names(self) -> list[str]:
        """Return the other live nodes that say where they are reached, by name."""
        return sorted(node for node, address in self._members().items() if address and node != self._node)

    async def call(
        self,
        node: str,
        kind: Callable[[grpc.aio.Channel], Stub],
        method: "Callable[[Stub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        *,
        timeout_s: float,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Response:
        """Call a method of a node once, as in `call("node-2", AdminServiceStub, lambda admin: admin.GetStatus, ...)`.

        Raises `UnknownPeer`, or `grpc.aio.AioRpcError` with the status that the node answered or grpc made up.
        """
        stub = self._peer(node).stub(kind)
        try:
            return await method(stub)(request, timeout=timeout_s, metadata=(*metadata, *self._metadata))
        except asyncio.CancelledError:
            # A channel that is closed cancels its calls, which looks as if the caller had been cancelled.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise UnknownPeer(node) from None

    async def refresh(self) -> None:
        """Close the channels to nodes that have left or moved, and those whose credentials have been replaced.

        Calls under way on them have a few seconds to end.
        """
        members, credentials = self._members(), self._credentials()
        for node, peer in list(self._peers.items()):
            if members.get(node) != peer.address or peer.credentials is not credentials:
                self._drop(node)

    async def close(self) -> None:
        """Close all channels; calls under way fail with `UnknownPeer`."""
        self._closed = True
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.channel.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _peer(self, node: str) -> "_Peer":
        address = self._members().get(node)
        if not address or node == self._node or self._closed:
            raise UnknownPeer(node)
        peer = self._peers.get(node)
        if peer is not None and peer.address != address:
            self._drop(node)
            peer = None
        if peer is None:
            peer = self._peers[node] = _Peer(address, self._credentials())
        return peer

    def _drop(self, node: str) -> None:
        peer = self._peers.pop(node)
        task = asyncio.create_task(peer.channel.close(CLOSE_GRACE_S), name=f"close-channel-{node}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Peer:
    """One node's channel, which connects with the first call, and the stubs made on it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.credentials = credentials
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        self._stubs: dict[object, object] = {}

    def stub(self, kind: Callable[[grpc.aio.Channel], Stub]) -> Stub:
        found = self._stubs.get(kind)
        if found is None:
            found = self._stubs[kind] = kind(self.channel)
        return cast("Stub", found)
