"""What the chart makes of values: well-formed for several versions of Kubernetes, complete, and safe by default."""

import itertools
import json
from typing import Any

import pytest

from tests.helm.chart import (
    CHART,
    KUBERNETES,
    VALUES,
    Manifest,
    Values,
    check_schema,
    containers,
    helm,
    manifests,
    notes,
    one,
    pods,
    render,
)  # fmt: skip
from tests.helm.golden import FOLDER, NAMES, kept

# Kinds of operators, whose schemas are not Kubernetes' own.
OPERATORS = {"ServiceMonitor", "Certificate"}
# Made by whoever installs the chart, in the values of these tests.
GIVEN = {"db", "db-ca", "zk-auth", "zk-tls", "admin", "pull", "mine"}

TLS: dict[str, Values] = {
    "generate": {},
    "existingSecret": {"existingSecret": "mine"},
    "certManager": {"certManager": {"issuer": "ca"}},
    "none": {},
}
DATABASES: list[Values] = [
    {"database": {"existingSecret": "db"}},
    {"database": {"url": "postgresql://u:p@db/x", "sslMode": ""}},
    {"trialPostgres": {"enabled": True}},
]
COORDINATORS: list[Values] = [
    {"coordinator": "postgres"},
    {"coordinator": "zookeeper", "zookeeper": {"servers": "zk:2181"}},
    {"coordinator": "zookeeper", "trialZookeeper": {"enabled": True}},
]
MATRIX = [
    {**database, **coordinator, "tls": {"source": source, **tls}}
    for (source, tls), database, coordinator in itertools.product(TLS.items(), DATABASES, COORDINATORS)
]


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_wrong(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--namespace", "jobs", values=VALUES[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_manifest(version: str) -> None:
    found = {json.dumps(one): one for values in VALUES.values() for one in manifests(values)}
    assert len(found) > 40
    for manifest in found.values():
        if manifest["kind"] not in OPERATORS:
            check_schema(manifest, version)


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    manifest = json.loads(json.dumps(one(manifests(VALUES["usual"]), "StatefulSet")))
    manifest["spec"]["template"]["spec"]["terminationGracePeriod"] = 50
    with pytest.raises(Exception, match="terminationGracePeriod"):
        check_schema(manifest, KUBERNETES[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_render_is_as_it_was(name: str) -> None:
    written = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert kept(name) == written, "if this change is meant: python -m tests.helm.golden"


def named(value: Any) -> set[str]:
    """Names of Secrets and ConfigMaps below a value."""
    if isinstance(value, list):
        return set().union(*map(named, value))
    if not isinstance(value, dict):
        return set()
    found = set().union(*map(named, value.values()))
    for key in ("secretKeyRef", "configMapRef", "configMap"):
        if key in value:
            found.add(value[key]["name"])
    if "secretName" in value:
        found.add(value["secretName"])
    return found


def check_complete(found: list[Manifest]) -> None:
    """Everything that a pod names is there when it starts."""
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))
    made = {name for kind, name in names if kind in ("Secret", "ConfigMap")}
    made |= {one["spec"]["secretName"] for one in found if one["kind"] == "Certificate"}
    early = {one["metadata"]["name"] for one in found if "pre-install" in hook(one) and one["kind"] == "Secret"}
    accounts = {name for kind, name in names if kind == "ServiceAccount"} | {"mine", "default"}
    for one_ in found:
        for name, spec in pods([one_]):
            there = early if "pre-install" in hook(one_) else made - early
            assert named(spec) <= there | GIVEN, name
            assert spec.get("serviceAccountName", "default") in ({"default"} if there is early else accounts)
            claims = {claim["metadata"]["name"] for claim in one_["spec"].get("volumeClaimTemplates", ())}
            volumes = {volume["name"] for volume in spec.get("volumes", ())} | claims
            mounted = {mount["name"] for each in containers(one_) for mount in each.get("volumeMounts", ())}
            assert mounted == volumes, name


def hook(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


@pytest.mark.parametrize("values", [*MATRIX, *VALUES.values()], ids=range(len(MATRIX) + len(VALUES)))
def test_a_release_is_complete(values: Values) -> None:
    check_complete(manifests(values))


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_confined(name: str) -> None:
    found = manifests(VALUES[name])
    assert pods(found)
    for made in found:
        for pod, spec in pods([made]):
            assert spec["automountServiceAccountToken"] is False, pod
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in containers(made):
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                assert {"requests", "limits"} <= container["resources"].keys(), container["name"]


def test_an_account_is_left_to_the_platform_if_asked() -> None:
    spec = one(manifests(VALUES["plain"]), "StatefulSet")["spec"]["template"]["spec"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()


def test_migration_comes_before_everything_else_and_only_then() -> None:
    job = one(manifests(VALUES["usual"]), "Job")
    assert hook(job) == "pre-install,pre-upgrade"
    assert not [made for made in manifests(VALUES["plain"]) if made["kind"] == "Job"]
    # A release that brings its own PostgreSQL has to migrate after that is there.
    trial = manifests(VALUES["trial"])
    assert not [made for made in trial if made["kind"] == "Job"]
    node = one(trial, "StatefulSet", "sw-shardwheel")
    assert [each["name"] for each in containers(node)] == ["migrate", "node"]


def test_an_upgrade_migrates_as_an_install_does() -> None:
    installed, upgraded = (one(manifests(VALUES["usual"], upgrade=upgrade), "Job") for upgrade in (False, True))
    assert installed == upgraded


def test_trials_are_marked_as_such() -> None:
    assert "FOR TRIALS ONLY: its PostgreSQL and its ZooKeeper" in notes(VALUES["trial"])
    assert "# For trials only" in render(VALUES["trial"])
    assert "trial" not in (text := notes(VALUES["usual"]).lower()), text


def test_the_notes_say_how_to_read_what_was_drawn() -> None:
    text = notes(VALUES["usual"])
    assert "get secret sw-shardwheel-tls -o jsonpath='{.data.ca\\.crt}' | base64 -d" in text
    assert "get secret sw-shardwheel-admin-token -o jsonpath='{.data.token}' | base64 -d" in text
    assert "SHARDWHEEL_ADDRESS=sw-shardwheel.jobs.svc.cluster.local:7400" in text
    assert "get secret admin -o jsonpath='{.data.admin\\.token}'" in notes(VALUES["everything"])
    assert "NO TLS" in notes(VALUES["plain"])
