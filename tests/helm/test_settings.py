"""What the chart tells the programs in its pods, against what these take."""

import json
from datetime import timedelta
from typing import Final

import pytest
import typer.main
from starlette.routing import Route

from server.app import STOP_GRACE_S
from server.cli.command import app
from server.config import NodeConfig, load_config, parse_span, unknown_variables
from server.node_health import NodeHealth
from server.observe.loop_lag import LoopLag
from server.web.late import LateApp
from server.web.probes import probes_app
from shard_manager.timings import ManagerTimings
from tests.helm.chart import CHART, DATABASE, VALUES, Values, containers, manifests, one, variables
from tests.support.access import open_gate

# What the chart makes itself of other values, or of where a pod is.
MADE: Final = {
    "database", "node", "listen", "advertise", "http_listen", "data_dir", "coordinator", "zookeeper", "zookeeper_auth",
    "zookeeper_acl", "zookeeper_ca", "zookeeper_cert", "zookeeper_key", "tls_cert", "tls_key", "tls_client_ca",
    "tls_ca", "insecure",
}  # fmt: skip
SECRETS: Final = {
    "SHARDWHEEL_DATABASE": "postgresql://shardwheel@db.example.org/shardwheel",
    "SHARDWHEEL_ZOOKEEPER_AUTH": "node:secret",
}
"""What the Secrets of the values hold."""


def node_variables(values: Values) -> dict[str, str]:
    found = manifests(values)
    sets = [made for made in found if made["kind"] == "StatefulSet" and "trial" not in made["metadata"]["name"]]
    (node,) = (each for each in containers(sets[0]) if each["name"] == "node")
    assert node["args"] == ["serve"]
    return variables(found, node, SECRETS)


@pytest.mark.parametrize("name", VALUES)
def test_a_node_takes_its_settings(name: str) -> None:
    environment = node_variables(VALUES[name])
    assert unknown_variables(environment) == []
    config = load_config(environment=environment)
    assert config.node == "sw-0"
    assert config.database == SECRETS["SHARDWHEEL_DATABASE"]
    assert config.coordinator == VALUES[name].get("coordinator", "postgres")


def test_settings_arrive_as_they_were_meant() -> None:
    config = load_config(environment=node_variables(VALUES["everything"]))
    assert config.drain_grace == timedelta(seconds=90)
    assert config.max_payload_bytes == 1048576
    assert config.zookeeper == "zk-0.example.org:2181,zk-1.example.org:2181/shardwheel/blue"
    assert config.zookeeper_auth == "node:secret"
    assert config.zookeeper_acl == "x509:CN=node-a;x509:CN=node-b"
    assert config.advertise == "sw-0.jobs-nodes.jobs.svc.cluster.local:7400"
    assert load_config(environment=node_variables(VALUES["plain"])).listen == "[::]:7400"


def test_every_setting_of_a_node_is_a_value_or_made_by_the_chart() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    offered = {snake(name) for name in schema["properties"]["settings"]["properties"]}
    assert not offered & MADE
    assert offered | MADE == set(NodeConfig.__dataclass_fields__)


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.parametrize("name", ["usual", "trial", "everything"])
def test_the_command_takes_the_flags_that_migrate_is_given(name: str) -> None:
    found = manifests(VALUES[name])
    pods = [made for made in found if made["kind"] in ("Job", "StatefulSet")]
    (container,) = (each for made in pods for each in containers(made) if each["name"] == "migrate")
    command, *flags = container["args"]
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    taken = {flag for parameter in parameters for flag in parameter.opts}
    assert {flag.partition("=")[0] for flag in flags} <= taken
    assert "--admin-token-file=/etc/shardwheel/admin/token" in flags
    assert ("--shards=256" in flags) == (name == "everything")


def test_another_coordinator_is_put_in_charge_before_nodes_with_it_start() -> None:
    found = manifests(VALUES["everything"])
    job = one(found, "Job", "jobs-change-coordinator")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    (container,) = containers(job)
    command = typer.main.get_command(app).commands[container["args"][0]]  # type: ignore[attr-defined]
    assert command.name == "change-coordinator"
    there = load_config(environment=variables(found, container, SECRETS))
    nodes = load_config(environment=node_variables(VALUES["everything"]))
    for name in (
        "coordinator",
        "zookeeper",
        "zookeeper_auth",
        "zookeeper_acl",
        "zookeeper_ca",
        "zookeeper_key",
        "database",
    ):
        assert getattr(there, name) == getattr(nodes, name), name
    assert not [made for made in manifests(VALUES["usual"]) if made["metadata"]["name"].endswith("coordinator")]


@pytest.mark.parametrize("grace", ["500ms", "10s", "1m30s", "1.5h", "1h1s"])
@pytest.mark.parametrize("pause", [0, 20])
def test_a_pod_is_given_the_time_that_a_node_may_take_to_stop(grace: str, pause: int) -> None:
    values = {**DATABASE, "settings": {"drainGrace": grace}, "preStopSeconds": pause}
    spec = one(manifests(values), "StatefulSet")["spec"]["template"]["spec"]
    (node,) = spec["containers"]
    assert node["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(pause)]
    # As Node.stop does: give the shards away, wait for results, end the streams.
    longest = ManagerTimings().drain_limit + parse_span(grace) + timedelta(seconds=STOP_GRACE_S)
    left = spec["terminationGracePeriodSeconds"] - pause - longest.total_seconds()
    assert 3 <= left <= 6, "what is left is for closing connections"


def test_an_update_goes_on_when_the_shards_are_back() -> None:
    spec = one(manifests(VALUES["usual"]), "StatefulSet")["spec"]
    timings = ManagerTimings()
    # Voluntary moves wait until membership is settled, and then go in rounds.
    assert spec["minReadySeconds"] >= 2 * timings.settle.total_seconds()
    assert one(manifests(VALUES["usual"]), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_probes_ask_what_there_is() -> None:
    health = NodeHealth("sw-0", LoopLag())
    served = probes_app(health, no_metrics, LateApp(str), open_gate()).routes
    paths = {route.path for route in served if isinstance(route, Route)}
    node = containers(one(manifests(VALUES["usual"]), "StatefulSet"))[0]
    asked = {kind: node[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert set(asked.values()) <= paths
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    environment = node_variables(VALUES["usual"])
    assert environment["SHARDWHEEL_LISTEN"].endswith(f":{ports['grpc']}")
    assert environment["SHARDWHEEL_HTTP_LISTEN"].endswith(f":{ports['http']}")


async def no_metrics(_: str) -> tuple[bytes, str]:
    return b"", ""


def test_peers_find_a_node_before_it_is_ready_and_clients_only_then() -> None:
    found = manifests(VALUES["usual"])
    headless, client = (one(found, "Service", name)["spec"] for name in ("sw-shardwheel-nodes", "sw-shardwheel"))
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in client
    labels = one(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert headless["selector"].items() <= labels.items()
    assert client["selector"].items() <= labels.items()


def test_what_the_lock_of_a_node_lies_on_does_not_follow_it_to_another_host() -> None:
    made = one(manifests(VALUES["usual"]), "StatefulSet")["spec"]
    (folder,) = (volume for volume in made["template"]["spec"]["volumes"] if volume["name"] == "data")
    assert "emptyDir" in folder
    assert "volumeClaimTemplates" not in made
