"""`shardctl status`, `handlers`, `workers` and `namespaces` over a real socket."""

from datetime import UTC, datetime, timedelta

import pytest

from shardwheel.v1.admin_service_pb2 import (
    DISPATCH_KAFKA,
    DISPATCH_STREAM,
    CreateNamespaceRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    GetStatusResponse,
    Handler,
    ListHandlersRequest,
    ListHandlersResponse,
    ListNamespacesResponse,
    ListTokensResponse,
    ListWorkersResponse,
    Namespace,
    PauseHandlerRequest,
    Quotas,
    ResumeHandlerRequest,
    RevokeTokenRequest,
    SetHandlerDispatchRequest,
    Token,
    UpdateNamespaceRequest,
    Worker,
)
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import ScriptedServer


@pytest.fixture
def status() -> GetStatusResponse:
    status = GetStatusResponse(
        answered_by="node-1",
        coordinator="zookeeper",
        leader="node-1",
        plan_version=12,
        shard_count=4,
        worker_count=2,
        due_count=3,
        pending_count=40,
        running_count=5,
        schedule_count=7,
        version="0.1.0",
    )
    status.oldest_due.FromTimedelta(timedelta(seconds=2.5))
    status.now.FromDatetime(datetime(2026, 11, 1, 5, 30, tzinfo=UTC))
    first = status.nodes.add(node="node-1", address="10.0.0.1:7400", state="up", shard_count=3, weight=1, leader=True)
    first.planned_shard_count = 4
    first.due_count, first.running_count = 2, 5
    first.joined_at.FromDatetime(datetime(2026, 11, 1, 5, 0, tzinfo=UTC))
    status.nodes.add(node="n" * 100, address="a" * 100, state="draining", shard_count=1, weight=1)
    for shard in range(3):
        status.shards.add(shard=shard, epoch=2, owner="node-1", planned_owner="node-1", state="serving")
    moving = status.shards.add(shard=3, epoch=9, owner="", planned_owner="node-1", state="unowned")
    moving.waiting_for = "node-1 to take it"
    moving.transition_since.FromDatetime(datetime(2026, 11, 1, 5, 29, 58, tzinfo=UTC))
    status.plan_reason = "drain node-2: drain 1"
    status.paused = True
    status.drained_nodes.append("node-2")
    status.pins.add(shard=3, node="node-1").until.FromDatetime(datetime(2026, 11, 1, 6, 30, tzinfo=UTC))
    return status


def test_status_fits_80_columns_and_shows_shards_in_transition(
    server: ScriptedServer, shardctl: Shardctl, status: GetStatusResponse
) -> None:
    server.answer("GetStatus", status)
    ran = shardctl("status")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.widest <= 80
    for text in (
        "cluster      2 nodes, 4 shards",
        "plan         12 (drain node-2: drain 1)",
        "orders       rebalancing is paused; drained: node-2; shard 3 pinned to node-1",
        "jobs         3 due (the oldest for 2.5s), 5 running, 40 pending",
        "1 of 4 shards in transition:",
    ):
        assert text in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["3", "unowned", "none", "node-1", "2s", "node-1", "to", "take", "it"] in rows
    assert ["node-1", "*", "up", "3→4", "2", "5", "1", "30m", "10.0.0.1:7400"] in rows
    everything = shardctl("status", "--shards").stdout
    assert everything.count("node-1") > ran.stdout.count("node-1")


def test_many_shards_in_transition_are_cut_short(
    server: ScriptedServer, shardctl: Shardctl, status: GetStatusResponse
) -> None:
    del status.shards[:]
    for shard in range(64):
        status.shards.add(shard=shard, planned_owner="node-1", state="unowned")
    server.answer("GetStatus", status)
    assert "… and 54 more; --shards lists all" in shardctl("status").stdout
    assert len(shardctl("status", "--shards").stdout.splitlines()) > 64


def test_status_as_json(server: ScriptedServer, shardctl: Shardctl, status: GetStatusResponse) -> None:
    server.answer("GetStatus", status)
    data = shardctl("-o", "json", "status").json
    assert list(data) == [field.name for field in GetStatusResponse.DESCRIPTOR.fields]
    assert (data["oldest_due"], data["now"], data["leader"]) == (2.5, "2026-11-01T05:30:00Z", "node-1")
    assert len(data["shards"]) == 4


def test_how_jobs_of_a_handler_are_handed_out(server: ScriptedServer, shardctl: Shardctl) -> None:
    published = Handler(
        namespace="tenant", handler="mail", dispatch=DISPATCH_KAFKA, published_count=3, max_unfinished=50
    )
    published.queue_timeout.FromTimedelta(timedelta(minutes=1))
    published.oldest_published.FromTimedelta(timedelta(seconds=9))
    server.answer("ListHandlers", ListHandlersResponse(handlers=[published]))
    assert shardctl("handlers", "list").stdout.splitlines()[1].endswith("kafka (3, 9s)")
    server.answer("SetHandlerDispatch", published)
    options = ("--queue-timeout", "1m", "--max-unfinished", "50", "--namespace", "tenant")
    ran = shardctl("handlers", "dispatch", "mail", "kafka", *options)
    assert " ".join(ran.stdout.split()) == (
        "jobs of mail are published to topic shardwheel.tenant.mail, at most 50 unfinished ones; again after 1m"
    )
    [request] = server.requests(SetHandlerDispatchRequest)
    assert (request.mode, request.queue_timeout.seconds, request.max_unfinished) == (DISPATCH_KAFKA, 60, 50)
    server.answer("SetHandlerDispatch", Handler(handler="mail", dispatch=DISPATCH_STREAM))
    back = shardctl("handlers", "dispatch", "mail", "stream")
    assert back.stdout == "jobs of mail are handed out over the workers' sessions\n"
    assert shardctl("handlers", "dispatch", "mail", "pigeon").code == 2


def test_handlers(server: ScriptedServer, shardctl: Shardctl) -> None:
    busy = Handler(handler="email.send", worker_count=2, slot_count=20, running_count=20, due_count=10_000, paused=True)
    busy.oldest_due.FromTimedelta(timedelta(minutes=2))
    server.answer("ListHandlers", ListHandlersResponse(handlers=[busy, Handler(handler="h" * 200)]))
    server.answer("PauseHandler", busy)
    server.answer("ResumeHandler", Handler(handler="email.send"))
    ran = shardctl("handlers", "list", "--namespace", "tenant")
    assert (ran.code, ran.widest) == (0, 80)
    assert ran.stdout.splitlines()[1].split() == ["email.send", "paused", "2", "20", "20", "10000+", "2m", "stream"]
    assert server.requests(ListHandlersRequest)[0].namespace == "tenant"
    assert shardctl("handlers", "list", "-o", "json").json["handlers"][0]["paused"] is True
    paused = shardctl("handlers", "pause", "email.send", "--note", "deploy")
    assert paused.stdout == "handler email.send is paused; still running: 20 jobs\n"
    assert shardctl("handlers", "resume", "email.send").stdout == "handler email.send is active\n"
    assert server.requests(PauseHandlerRequest)[0].note == "deploy"
    assert server.requests(ResumeHandlerRequest)[0].handler == "email.send"


def test_workers(server: ScriptedServer, shardctl: Shardctl) -> None:
    worker = Worker(worker="w" * 100, incarnation=5, running_count=3, sdk="python/0.1.0")
    worker.handlers.add(handler="email.send", slots=8)
    worker.handlers.add(handler="report.build", slots=2)
    server.answer("ListWorkers", ListWorkersResponse(workers=[worker]), ListWorkersResponse())
    ran = shardctl("workers", "list")
    assert (ran.code, ran.widest) == (0, 80)
    assert ran.stdout.splitlines()[1].split()[1:3] == ["3", "10"]
    assert shardctl("workers", "list").stdout == "no live workers\n"


def test_namespaces(server: ScriptedServer, shardctl: Shardctl) -> None:
    namespace = Namespace(namespace="tenant")
    namespace.retry.max_attempts = 2
    server.answer("CreateNamespace", namespace)
    server.answer("ListNamespaces", ListNamespacesResponse(namespaces=[namespace]))
    ran = shardctl("namespaces", "create", "tenant", "--max-attempts", "2", "--attempt-timeout", "1m")
    assert (ran.code, ran.stdout) == (0, "namespace tenant exists\n")
    (request,) = server.requests(CreateNamespaceRequest)
    assert (request.namespace, request.retry.max_attempts, request.timeouts.attempt_timeout.seconds) == (
        "tenant",
        2,
        60,
    )
    listed = shardctl("namespaces", "list")
    assert listed.stdout.splitlines()[1].split() == ["tenant", "2", "attempts", "-", "-"]
    assert shardctl("namespaces", "list", "-o", "json").json["namespaces"][0]["created_at"] is None


def test_quotas_of_a_namespace(server: ScriptedServer, shardctl: Shardctl) -> None:
    limited = Namespace(namespace="tenant", quotas=Quotas(pending_jobs=1000000, submit_rate=12.5))
    server.answer("UpdateNamespace", limited, Namespace(namespace="tenant"))
    ran = shardctl("namespaces", "update", "tenant", "--pending-jobs", "1000000", "--submit-rate", "12.5")
    assert (ran.code, ran.stdout) == (0, "namespace tenant: pending-jobs=1000000 submit-rate=12.5\n")
    lifted = shardctl("namespaces", "update", "tenant", "--pending-jobs", "0", "--submit-rate", "0")
    assert (lifted.code, lifted.stdout) == (0, "namespace tenant: no quotas\n")
    first, second = server.requests(UpdateNamespaceRequest)
    assert [one.name for one, _ in first.quotas.ListFields()] == ["pending_jobs", "submit_rate"]
    assert second.quotas == Quotas(pending_jobs=0, submit_rate=0)
    assert shardctl("namespaces", "update", "tenant", "--schedules", "-1").code == 2


def test_tokens(server: ScriptedServer, shardctl: Shardctl) -> None:
    token = Token(id=7, holder="shop", scopes=["default:submit", "default:read"], created_by="token:admin")
    server.answer("CreateToken", CreateTokenResponse(token=token, secret="s3cret"))
    server.answer("ListTokens", ListTokensResponse(tokens=[token]), ListTokensResponse())
    server.answer("RevokeToken", token)
    made = shardctl("tokens", "create", "shop", "--scope", "default:submit,read", "--lifetime", "30d")
    assert (made.code, made.stdout) == (0, "s3cret\n")
    (request,) = server.requests(CreateTokenRequest)
    assert (request.holder, list(request.scopes)) == ("shop", ["default:submit,read"])
    assert request.lifetime.ToTimedelta() == timedelta(days=30)
    listed = shardctl("tokens", "list")
    assert listed.stdout.splitlines()[1].split()[:2] == ["7", "shop"]
    assert shardctl("tokens", "list").stdout == "no tokens\n"
    assert shardctl("tokens", "revoke", "7").stdout == "token 7 of shop is revoked\n"
    assert [one.id for one in server.requests(RevokeTokenRequest)] == [7]
    assert shardctl("tokens", "create", "shop").code == 2
