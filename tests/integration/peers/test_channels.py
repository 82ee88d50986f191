"""Channels between nodes: opened by name, following what the members say, and never taken for a cancelled caller."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from server.peers.channels import PeerChannels, UnknownPeer

Context = grpc.aio.ServicerContext[HealthCheckRequest, Awaitable[HealthCheckResponse]]


class Peer(HealthServicer):
    """A node that says which it is by a header, or nothing at all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.silent = False
        self.called = asyncio.Event()
        self.hops: list[str] = []
        self.asked: list[str] = []
        self.server = grpc.aio.server()
        add_HealthServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        self.called.set()
        self.asked.append(request.service)
        self.hops += [str(value) for key, value in context.invocation_metadata() or () if key == "x-hop"]
        if self.silent:
            await asyncio.Event().wait()
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)


Check = grpc.aio.UnaryUnaryMultiCallable[HealthCheckRequest, HealthCheckResponse]


class HealthStub:
    """The client's side."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.check: Check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )


Start = Callable[[str], Awaitable[Peer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts peers, which are stopped afterwards."""
    started: list[Peer] = []

    async def one(name: str) -> Peer:
        peer = Peer(name)
        await peer.server.start()
        started.append(peer)
        return peer

    yield one
    for peer in started:
        await peer.server.stop(0)


async def ask(channels: PeerChannels, node: str, timeout_s: float = 5.0, **more: str) -> None:
    await channels.call(
        node,
        HealthStub,
        lambda health: health.check,
        HealthCheckRequest(service=node),
        timeout_s=timeout_s,
        metadata=[(f"x-{key}", value) for key, value in more.items()],
    )


async def test_nodes_are_called_by_name_where_they_say_they_are(start: Start) -> None:
    first, second = await start("b"), await start("c")
    members = {"a": "127.0.0.1:1", "b": first.address, "c": second.address, "d": ""}
    channels = PeerChannels("a", lambda: members)
    assert channels.names() == ["b", "c"]
    await ask(channels, "b", hop="1")
    await ask(channels, "c")
    assert (first.asked, second.asked, first.hops) == (["b"], ["c"], ["1"])
    for nobody in ("a", "d", "e"):
        with pytest.raises(UnknownPeer, match=f"'{nobody}' is not a member"):
            await ask(channels, nobody)
    # The node comes back elsewhere.
    again = await start("b again")
    members["b"] = again.address
    await ask(channels, "b")
    assert (first.asked, again.asked) == (["b"], ["b"])
    await channels.close()
    with pytest.raises(UnknownPeer):
        await ask(channels, "b")


async def test_a_silent_or_absent_node_costs_the_deadline_or_less(start: Start) -> None:
    peer, gone = await start("b"), await start("c")
    peer.silent = True
    await gone.server.stop(0)
    channels = PeerChannels("a", lambda: {"b": peer.address, "c": gone.address})
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as silent:
        await ask(channels, "b", 0.3)
    assert silent.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with pytest.raises(grpc.aio.AioRpcError) as absent:
        await ask(channels, "c", 2.0)
    assert absent.value.code() is grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - started < 2.0
    await channels.close()


async def test_a_call_to_a_node_that_leaves_fails_and_the_caller_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.peers.channels.CLOSE_GRACE_S", 0.2)
    peer = await start("b")
    peer.silent = True
    members = {"b": peer.address}
    channels = PeerChannels("a", lambda: members)

    async def caller() -> str:
        try:
            await ask(channels, "b", 30.0)
            return "answered"
        except UnknownPeer as error:
            return f"gone: {error.node}"

    task = asyncio.create_task(caller())
    await peer.called.wait()
    members.clear()
    await channels.refresh()
    assert await asyncio.wait_for(task, 5) == "gone: b"
    # A caller that is itself cancelled is not told that a node has left.
    members["b"] = peer.address
    peer.called.clear()
    task = asyncio.create_task(caller())
    await peer.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await channels.close()
