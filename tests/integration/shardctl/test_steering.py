"""Commands that steer the cluster, over a real socket."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest

from shardwheel.v1.admin_service_pb2 import (
    DrainNodeRequest,
    EvictNodeRequest,
    GetStatusResponse,
    MoveShardRequest,
    PauseRebalanceRequest,
    PlanChange,
    RebalanceRequest,
    ResumeRebalanceRequest,
    UndrainNodeRequest,
)
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import Refusal, ScriptedServer

LONG = "n" * 100


@pytest.fixture
def change() -> PlanChange:
    change = PlanChange(leader="node-1", plan_version=8)
    for shard in range(30):
        change.moves.add(shard=shard, source="node-1", target=LONG, cause="balance")
    change.balance.add(node="node-1", before=60, after=30)
    change.balance.add(node=LONG, before=0, after=30)
    return change


def status(version: int, state: str, owner: str) -> GetStatusResponse:
    """A cluster of one shard, which is to be at `node-2`."""
    status = GetStatusResponse(plan_version=version, shard_count=1)
    status.now.FromDatetime(datetime(2026, 11, 1, tzinfo=UTC))
    status.shards.add(shard=0, owner=owner, planned_owner="node-2", state=state)
    return status


def one_move(version: int = 8) -> PlanChange:
    change = PlanChange(leader="node-1", plan_version=version)
    change.moves.add(shard=0, source="node-1", target="node-2", cause="drain")
    return change


def test_a_rebalance_is_shown_as_a_diff_within_80_columns(
    server: ScriptedServer, shardctl: Shardctl, change: PlanChange
) -> None:
    server.answer("Rebalance", change)
    ran = shardctl("rebalance", "--dry-run", "--expect-plan", "7")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.widest <= 80
    assert "… and 10 more; -o json lists all" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "30 shards to move (balance 30); plan 8"
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["node-1", "60", "30", "-30"] in rows
    assert server.requests(RebalanceRequest) == [RebalanceRequest(dry_run=True, expected_plan_version=7)]
    data = shardctl("-o", "json", "rebalance").json
    assert (len(data["moves"]), data["balance"][0], data["plan_version"]) == (
        30,
        {"node": "node-1", "before": 60, "after": 30},
        8,
    )
    server.answer("Rebalance", PlanChange(plan_version=8))
    assert shardctl("rebalance").stdout == "no shard moves; plan 8\n"


def test_orders_say_what_was_done(server: ScriptedServer, shardctl: Shardctl) -> None:
    for method in ("DrainNode", "EvictNode", "MoveShard"):
        server.answer(method, one_move())
    for method in ("UndrainNode", "PauseRebalance", "ResumeRebalance"):
        server.answer(method, PlanChange(plan_version=9))
    said = {
        ("drain", "node-1"): "node node-1 is drained; gives its shards away; 1 shard to move (drain 1)\n",
        ("evict", "node-1", "--yes"): (
            "node node-1 is evicted; it is given no shards until it is restarted or undrained; 1 shard\n"
            "to move (drain 1)\n"
        ),
        ("move", "0", "node-2", "--pin", "1h"): "shard 0 belongs to node node-2; 1 shard to move (drain 1)\n",
        ("undrain", "node-1"): (
            "node node-1 is undrained; it is given shards once the cluster has settled; no\nshard moves\n"
        ),
        ("pause-rebalance",): "rebalancing is paused; no shard moves\n",
        ("resume-rebalance",): "rebalancing is resumed; no shard moves\n",
    }
    for arguments, text in said.items():
        ran = shardctl(*arguments)
        assert (ran.code, ran.stderr) == (0, "")
        assert ran.stdout.split() == text.split()
        assert ran.widest <= 80
    assert server.requests(DrainNodeRequest) == [DrainNodeRequest(node="node-1")]
    assert server.requests(EvictNodeRequest) == [EvictNodeRequest(node="node-1")]
    [moved] = server.requests(MoveShardRequest)
    assert (moved.shard, moved.node, moved.pin.ToTimedelta()) == (0, "node-2", timedelta(hours=1))
    assert server.requests(UndrainNodeRequest) == [UndrainNodeRequest(node="node-1")]
    assert len(server.requests(PauseRebalanceRequest)) == len(server.requests(ResumeRebalanceRequest)) == 1


def test_wait_ends_when_the_planned_owners_serve(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("DrainNode", one_move())
    # The first answer is of a node that has not seen the plan yet.
    server.answer(
        "GetStatus", status(7, "serving", "node-1"), status(8, "moving", "node-1"), status(8, "serving", "node-2")
    )
    ran = shardctl("drain", "node-1", "--wait")
    assert (ran.code, ran.stderr) == (0, "")
    assert [method for method, _ in server.calls] == ["DrainNode", "GetStatus", "GetStatus", "GetStatus"]


def test_wait_for_a_rebalance_goes_on_until_nothing_is_left_to_move(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("Rebalance", one_move(), one_move(), PlanChange(plan_version=9))
    server.answer("GetStatus", status(8, "serving", "node-2"))
    assert shardctl("rebalance", "--wait").code == 0
    assert [request.dry_run for request in server.requests(RebalanceRequest)] == [False, True, True]


def test_wait_bears_with_a_cluster_that_is_away_for_a_moment(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("DrainNode", one_move())
    server.answer("GetStatus", Refusal(grpc.StatusCode.UNAVAILABLE, "away"), status(8, "serving", "node-2"))
    assert shardctl("drain", "node-1", "--wait").code == 0


def test_wait_that_takes_too_long_says_what_is_missing(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("DrainNode", one_move())
    server.answer("GetStatus", status(8, "moving", "node-1"))
    ran = shardctl("drain", "node-1", "--wait", "--timeout", "700ms")
    assert (ran.code, ran.stdout) == (1, "")
    assert "not all is in place after 700ms: 1 shard in transition" in ran.stderr


def test_what_is_refused_changes_the_exit_code(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("DrainNode", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "is the last", reason="LAST_NODE"))
    server.answer("UndrainNode", Refusal(grpc.StatusCode.NOT_FOUND, "there is no node 'x'", reason="NODE_NOT_FOUND"))
    server.answer("MoveShard", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "", ("shard", "has to be from 0 to 63")))
    server.answer(
        "PauseRebalance",
        Refusal(grpc.StatusCode.UNAVAILABLE, "knows of no leader", reason="NO_LEADER", retry_in_s=1),
    )
    cases = [
        (("drain", "node-1"), 1, "is the last"),
        (("undrain", "x"), 1, "error: not found: there is no node 'x'"),
        (("move", "64", "node-1"), 2, "error: shard: has to be from 0 to 63"),
        (("move", "99999999999", "node-1"), 2, "is no shard"),
        (("pause-rebalance",), 1, "Try again in 1s."),
        (("rebalance", "--dry-run", "--wait"), 2, "nothing to wait for"),
        # Nobody can be asked: stdin is no terminal here.
        (("evict", "node-1"), 2, "--yes"),
        (("shards", "--state", "lost"), 2, "is none of serving"),
    ]
    for arguments, code, text in cases:
        ran = shardctl(*arguments)
        assert (ran.code, ran.stdout, text in ran.stderr) == (code, "", True), ran.stderr
        assert "namespace" not in ran.stderr
    assert server.requests(EvictNodeRequest) == []


def test_nodes_and_shards_are_listed_by_themselves(server: ScriptedServer, shardctl: Shardctl) -> None:
    answer = status(8, "moving", "node-1")
    answer.shards.add(shard=1, owner="node-2", planned_owner="node-2", state="serving", epoch=4)
    for name in ("node-1", "node-2"):
        answer.nodes.add(node=name, state="up", shard_count=1, planned_shard_count=2, weight=1)
    server.answer("GetStatus", answer)
    assert [node["node"] for node in shardctl("nodes", "-o", "json").json["nodes"]] == ["node-1", "node-2"]
    assert shardctl("nodes").stdout.splitlines()[1].split() == ["node-1", "up", "1→2", "0", "0", "1", "-", "-"]
    listed = {
        (): [0, 1],
        ("--state", "moving"): [0],
        ("--node", "node-1"): [0],
        ("--node", "node-2"): [0, 1],
        ("--node", "node-2", "--state", "serving"): [1],
        ("--state", "held"): [],
    }
    for arguments, shards in listed.items():
        data = shardctl("shards", "-o", "json", *arguments).json
        assert [shard["shard"] for shard in data["shards"]] == shards
    assert shardctl("shards", "--state", "held").stdout == "no shards\n"
    unknown = shardctl("shards", "--node", "x")
    assert (unknown.code, "there are: node-1, node-2" in unknown.stderr) == (2, True)
