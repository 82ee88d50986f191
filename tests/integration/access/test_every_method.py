"""Each method of each service: who is let in, and who is not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from server.access.rules import RULES, Place
from server.app import Node
from server.domain.access import Right
from tests.integration.access.calls import code_of, methods, services
from tests.support.access import bearer, granted
from tests.support.nodes import running_node

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
REFUSED = (UNAUTHENTICATED, DENIED)

#: What may be answered without any right in any namespace: what the caller has to know already, and how to call.
FOR_ANYBODY_KNOWN = {"PreviewSchedule", "ServerReflectionInfo"}

#: What is done to a namespace by whoever runs the cluster.
OF_THE_CLUSTER = {"CreateNamespace", "UpdateNamespace"}


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node of a database that has been given a token."""
    await granted(database, "nowhere:read")
    async with running_node(database, tmp_path) as node:
        yield node


@pytest.fixture
async def channel(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield channel


def test_every_method_has_a_rule() -> None:
    assert {method.path for method in methods()} == set(RULES)
    assert {path for path, rule in RULES.items() if rule.place is Place.OPEN} == {
        f"/grpc.health.v1.Health/{name}" for name in ("Check", "List", "Watch")
    }


def test_every_method_that_takes_a_right_in_a_namespace_names_one() -> None:
    for method in methods():
        fields = method.request.DESCRIPTOR.fields_by_name
        match RULES[method.path].place:
            case Place.NAMESPACE:
                assert "namespace" in fields, method.path
            case Place.HELLO:
                hello = fields["hello"].message_type
                assert hello is not None
                assert "namespace" in hello.fields_by_name, method.path
            case Place.ANYWHERE:
                assert method.name in FOR_ANYBODY_KNOWN
            case _:
                assert "namespace" not in fields or method.name in OF_THE_CLUSTER, method.path


async def test_the_node_serves_what_is_walked_here(channel: grpc.aio.Channel, database: str) -> None:
    token = await granted(database, "nowhere:read")
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    ask: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
    [said] = [one async for one in ask(iter([request.SerializeToString()]), metadata=bearer(token))]
    answer = reflection_pb2.ServerReflectionResponse.FromString(said)
    served = {one.name for one in answer.list_services_response.service}
    assert served == {service.full_name for service in services()}


async def test_who_is_not_known_gets_health_alone(channel: grpc.aio.Channel) -> None:
    for header in (None, "", "Bearer", "Bearer nonsense", "Node nonsense", "Basic YTpi", "nonsense"):
        metadata = () if header is None else (("authorization", header),)
        called = list(methods())
        codes = await asyncio.gather(*(code_of(channel, method, metadata) for method in called))
        for method, code in zip(called, codes, strict=True):
            if RULES[method.path].place is Place.OPEN:
                assert code not in REFUSED, (header, method.path)
            else:
                assert code is UNAUTHENTICATED, (header, method.path)


async def test_rights_in_another_namespace_are_of_no_use(channel: grpc.aio.Channel, database: str) -> None:
    foreign = bearer(await granted(database, "other:admin"))
    for method in methods():
        code = await code_of(channel, method, foreign)
        if RULES[method.path].place in (Place.OPEN, Place.ANYWHERE):
            assert code not in REFUSED, method.path
        else:
            assert code is DENIED, method.path


async def test_each_method_takes_its_own_right(channel: grpc.aio.Channel, database: str) -> None:
    lesser = {
        right: bearer(await granted(database, *(f"*:{one}" for one in Right if one not in (right, Right.ADMIN))))
        for right in Right
    }
    own = {right: bearer(await granted(database, f"default:{right}")) for right in Right}
    of_cluster = {right: bearer(await granted(database, f"*:{right}")) for right in Right}
    for method in methods():
        rule = RULES[method.path]
        if rule.place in (Place.NAMESPACE, Place.HELLO):
            assert await code_of(channel, method, lesser[rule.right]) is DENIED, method.path
            assert await code_of(channel, method, own[rule.right]) not in REFUSED, method.path
            assert await code_of(channel, method, own[Right.ADMIN]) not in REFUSED, method.path
        elif rule.place is Place.CLUSTER:
            assert await code_of(channel, method, lesser[rule.right]) is DENIED, method.path
            assert await code_of(channel, method, own[Right.ADMIN]) is DENIED, method.path
            assert await code_of(channel, method, of_cluster[rule.right]) not in REFUSED, method.path


async def test_what_nodes_say_to_each_other_is_for_nodes(channel: grpc.aio.Channel, database: str, node: Node) -> None:
    admin = bearer(await granted(database, "*:admin"))
    key = (("authorization", node.access.authorization),)
    between_nodes = [method for method in methods() if RULES[method.path].place is Place.NODES]
    assert {method.name for method in between_nodes} == {"Tell", "GetHandlerView", "GetNodeActivity"}
    for method in between_nodes:
        assert await code_of(channel, method, admin) is DENIED, method.path
        assert await code_of(channel, method, key) not in REFUSED, method.path


async def test_each_message_of_a_stream_is_looked_at(channel: grpc.aio.Channel, database: str) -> None:
    token = await granted(database, "default:submit")
    [method] = [method for method in methods() if method.name == "BulkSubmitJobs"]
    first = type(method.request)(namespace="default", jobs=[{"handler": "mail"}])
    second = type(method.request)(namespace="other", jobs=[{"handler": "mail"}])
    stream: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(method.path)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream(
            iter([first.SerializeToString(), second.SerializeToString()]), metadata=bearer(token), timeout=10.0
        )
    assert refused.value.code() is DENIED
    assert "namespace 'other'" in str(refused.value.details())


async def test_a_method_without_a_rule_is_closed(
    channel: grpc.aio.Channel, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bearer(await granted(database, "*:admin"))
    method = next(method for method in methods() if method.name == "GetJob")
    assert await code_of(channel, method, admin) is grpc.StatusCode.INVALID_ARGUMENT
    monkeypatch.delitem(RULES, method.path)
    assert await code_of(channel, method, admin) is DENIED


async def test_open_access_lets_everybody_do_everything(database: str, tmp_path: Path) -> None:
    async with (
        running_node(database, tmp_path) as node,
        grpc.aio.insecure_channel(node.address) as channel,
    ):
        for method in methods():
            assert await code_of(channel, method) not in REFUSED, method.path
        # The first token ends that, also without a restart.
        token = await granted(database, "*:read")
        get_status = next(method for method in methods() if method.name == "GetStatus")
        await node.access.keyring.refresh()
        assert await code_of(channel, get_status) is UNAUTHENTICATED
        assert await code_of(channel, get_status, bearer(token)) is grpc.StatusCode.OK
