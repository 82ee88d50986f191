"""examples/kubernetes, put together by the real kubectl, fits the chart and the programs."""

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.helm.chart import (
    CHART,
    DATABASE,
    KUBERNETES,
    Manifest,
    check_schema,
    containers,
    documents,
    helm,
    one,
    program,
)  # fmt: skip
from tests.support.commands import REPOSITORY, environment

EXAMPLE = REPOSITORY / "examples" / "kubernetes"


@pytest.fixture(scope="module")
def example() -> list[Manifest]:
    command = [str(program("kubectl")), "kustomize", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@pytest.fixture(scope="module")
def release() -> list[Manifest]:
    """The release that the example is for."""
    done = helm("template", "shardwheel", str(CHART), "--namespace", "default", values=DATABASE)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def hpa() -> Manifest:
    (manifest,) = documents((EXAMPLE / "hpa.yaml").read_text(encoding="utf-8"))
    return manifest


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_it(example: list[Manifest], version: str) -> None:
    assert {made["kind"] for made in example} == {"ConfigMap", "Deployment", "ScaledObject"}
    for manifest in [*example, hpa()]:
        if manifest["kind"] != "ScaledObject":
            check_schema(manifest, version)


def test_workers_reach_the_release(example: list[Manifest], release: list[Manifest]) -> None:
    spec = one(example, "Deployment")["spec"]["template"]["spec"]
    given = {entry["name"]: entry for entry in containers(one(example, "Deployment"))[0]["env"]}
    host, _, port = given["SHARDWHEEL_ADDRESS"]["value"].partition(":")
    assert port == str(one(release, "Service", host)["spec"]["ports"][0]["port"])
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert "ca.crt" in one(release, "Secret", volumes["ca"]["secret"]["secretName"])["data"]
    assert volumes["code"]["configMap"]["name"] == one(example, "ConfigMap")["metadata"]["name"]
    # The name of what the nodes run, in the version that the chart has.
    assert containers(one(example, "Deployment"))[0]["image"] == containers(one(release, "StatefulSet"))[0]["image"]


def test_workers_run_the_code_of_the_example_and_have_time_to_stop(example: list[Manifest]) -> None:
    (name,) = one(example, "ConfigMap")["data"]
    assert one(example, "ConfigMap")["data"][name] == (EXAMPLE / name).read_text(encoding="utf-8")
    (container,) = containers(one(example, "Deployment"))
    *start, place, grace, health = container["command"]
    assert start == ["python", "-m", "worker_sdk"]
    assert handlers_of(place) == handlers_scaled_by(example)
    spec = one(example, "Deployment")["spec"]["template"]["spec"]
    assert health == f"--health-listen=:{container['readinessProbe']['httpGet']['port']}"
    assert spec["terminationGracePeriodSeconds"] >= int(grace.removeprefix("--grace=")) + 10


def handlers_of(place: str) -> list[str]:
    """Load a worker as `python -m worker_sdk` does, in a process of its own."""
    ask = f"from worker_sdk.__main__ import load_worker; print(*(one.name for one in load_worker({place!r}).handlers))"
    command = [sys.executable, "-c", ask]
    done = subprocess.run(
        command, cwd=EXAMPLE, env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def handlers_scaled_by(example: list[Manifest]) -> list[str]:
    return re.findall('handler="([^"]+)"', query(example))


def query(example: list[Manifest]) -> str:
    (trigger,) = one(example, "ScaledObject")["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


def test_both_ways_scale_alike_by_metrics_that_there_are(example: list[Manifest]) -> None:
    scaled, plain = one(example, "ScaledObject")["spec"], hpa()["spec"]
    (metric,) = plain["metrics"]
    rule: dict[str, Any] = yaml.safe_load((EXAMPLE / "adapter-values.yaml").read_text(encoding="utf-8"))
    names = {metric["external"]["metric"]["name"], *re.findall(r"shardwheel_\w+", query(example))}
    assert names == {rule["rules"]["external"][0]["seriesQuery"]}
    source = (REPOSITORY / "server" / "observe" / "load_metrics.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in source for name in names)
    assert [metric["external"]["metric"]["selector"]["matchLabels"]["handler"]] == handlers_scaled_by(example)
    assert metric["external"]["target"]["averageValue"] == scaled["triggers"][0]["metadata"]["threshold"]
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == plain["behavior"]
    assert (plain["minReplicas"], plain["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert plain["scaleTargetRef"]["name"] == scaled["scaleTargetRef"]["name"] == "email-worker"
