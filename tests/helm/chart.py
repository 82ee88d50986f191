"""Renders of the chart by the real helm, without a cluster."""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate
import yaml

from tests.support.wheels import REPOSITORY

CHART = REPOSITORY / "helm" / "shardwheel"
Values: TypeAlias = Mapping[str, Any]
Manifest: TypeAlias = dict[str, Any]

#: The oldest that the chart takes, one that is common, and the newest whose schemas there are.
KUBERNETES = ("1.27", "1.32", "1.37")
DIGEST = f"sha256:{'a' * 64}"
DATABASE: Values = {"database": {"existingSecret": "db"}}

#: Everything that the chart can make, in few renders.
VALUES: Mapping[str, Values] = {
    "usual": DATABASE,
    "trial": {
        "replicas": 1,
        "coordinator": "zookeeper",
        "trialPostgres": {"enabled": True},
        "trialZookeeper": {"enabled": True, "storage": ""},
    },
    "everything": {
        "fullnameOverride": "jobs",
        "image": {"repository": "images.example.org/shardwheel", "digest": DIGEST, "pullSecrets": ["pull"]},
        "database": {"url": "postgresql://shardwheel:p%40ss@db.example.org:5432/shardwheel", "caSecret": "db-ca"},
        "coordinator": "zookeeper",
        "zookeeper": {
            "servers": "zk-0.example.org:2181,zk-1.example.org:2181/shardwheel/blue",
            "authSecret": "zk-auth",
            "tlsSecret": "zk-tls",
            "acl": "x509:CN=node-a;x509:CN=node-b",
        },
        "settings": {"drainGrace": "1m30s", "maxPayloadBytes": 1048576, "logLevel": "debug"},
        "tls": {"source": "certManager", "certManager": {"issuer": "ca"}, "requireClientCertificates": True},
        "adminToken": {"existingSecret": "admin", "existingSecretKey": "admin.token"},
        "migration": {"shards": 256, "partitions": 32, "changeCoordinator": True},
        "service": {"type": "LoadBalancer", "annotations": {"example.org/internal": "true"}},
        "serviceAccount": {"annotations": {"example.org/role": "jobs"}},
        "podLabels": {"team": "jobs"},
        "podAnnotations": {"example.org/team": "jobs"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "autoscaling": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {
            "enabled": True,
            "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 5432}]}],
        },
    },
    "plain": {
        **DATABASE,
        "replicas": 0,
        "runAsUser": None,
        "bindAddress": "[::]",
        "tls": {"source": "none"},
        "migration": {"enabled": False},
        "serviceAccount": {"name": "mine"},
        "podDisruptionBudget": {"enabled": False},
        "topologySpread": {"keys": []},
        "networkPolicy": {"enabled": True},
    },
    "own-certificate": {
        **DATABASE,
        "tls": {"source": "existingSecret", "existingSecret": "mine"},
        "adminToken": {"existingSecret": "admin"},
    },
}  # fmt: skip


def program(name: str) -> Path:
    """Return a program that `make setup` gets."""
    path = Path(sys.prefix) / "bin" / name
    assert path.exists(), f"there is no {path}: run `make setup`, which says why it does not get it"
    return path


def helm(*arguments: str, values: Values | None = None) -> "subprocess.CompletedProcess[str]":
    """Run helm; `values` go in as a file. Nothing of this machine's own configuration counts."""
    options = [] if values is None else ["--values", "-"]
    given = None if values is None else json.dumps(values)
    return subprocess.run(
        [program("helm"), *arguments, *options],
        input=given,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@functools.cache
def _rendered(values: str, upgrade: bool, notes: bool) -> str:
    options = [*(["--is-upgrade"] if upgrade else [])]
    command = ["install", "--dry-run=client", "--hide-secret"] if notes else ["template", *options]
    done = helm(*command, "sw", str(CHART), "--namespace", "jobs", values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: Values, *, upgrade: bool = False) -> str:
    """Return the manifests as helm prints them, drawn once per test process."""
    return _rendered(json.dumps(values), upgrade, notes=False)


def notes(values: Values) -> str:
    """Return what an install prints at its end."""
    return _rendered(json.dumps(values), upgrade=False, notes=True).partition("NOTES:\n")[2]


def manifests(values: Values, *, upgrade: bool = False) -> list[Manifest]:
    return documents(render(values, upgrade=upgrade))


def documents(text: str) -> list[Manifest]:
    """Return the documents of a text in YAML, without empty ones."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def one(found: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only manifest of a kind, or the one of them with this name."""
    (manifest,) = (one for one in found if one["kind"] == kind and name in ("", one["metadata"]["name"]))
    return manifest


def containers(manifest: Manifest) -> list[dict[str, Any]]:
    spec = manifest["spec"]["template"]["spec"] if "template" in manifest["spec"] else manifest["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def pods(found: Sequence[Manifest]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, spec) of everything that makes pods."""
    specs = []
    for one in found:
        if one["kind"] in ("StatefulSet", "Deployment", "Job"):
            specs.append((one["metadata"]["name"], one["spec"]["template"]["spec"]))
        elif one["kind"] == "Pod":
            specs.append((one["metadata"]["name"], one["spec"]))
    return specs


def check_schema(manifest: Manifest, version: str) -> None:
    """Raise unless the manifest is what that version of Kubernetes takes, with no field that it does not know."""
    _remember()
    kubernetes_validate.validate(manifest, version, strict=True)


@functools.cache
def _remember() -> None:
    """The package reads megabytes of schemas anew for each manifest."""
    from kubernetes_validate import utils

    for name in ("schema_contents", "all_versions"):
        setattr(utils, name, functools.cache(getattr(utils, name)))


def variables(found: Sequence[Manifest], container: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a container starts with, in the pod sw-0. `given` are secrets, by their variables."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        values |= one(found, "ConfigMap", source["configMapRef"]["name"])["data"]
    for entry in container["env"]:
        if "value" in entry:
            values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], entry["value"])
        elif "fieldRef" in entry["valueFrom"]:
            assert entry["valueFrom"]["fieldRef"] == {"fieldPath": "metadata.name"}
            values[entry["name"]] = "sw-0"
        else:
            values[entry["name"]] = given[entry["name"]]
    return values
