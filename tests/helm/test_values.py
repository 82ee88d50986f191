"""Values: refused with their name if they are wrong, and described."""

import importlib.util
import json
import tomllib
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, DATABASE, Values, helm
from tests.support.wheels import REPOSITORY

SOURCE = (CHART / "values.yaml").read_text(encoding="utf-8")

REFUSED: list[tuple[Values, str, str]] = [
    ({"replica": 3}, "additional properties 'replica' not allowed", ""),
    ({"replicas": -1}, "/replicas", "minimum"),
    ({"replicas": "three"}, "/replicas", "want integer"),
    ({"image": {"digest": "sha256:12"}}, "/image/digest", "does not match"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy", "IfNotPresent"),
    ({"coordinator": "etcd"}, "/coordinator", "'postgres', 'zookeeper'"),
    ({"database": {"url": "mysql://db/x"}}, "/database/url", "mysql"),
    ({"database": {"sslMode": "verify"}}, "/database/sslMode", "verify-full"),
    ({"database": {"existingSecret": "Not A Name"}}, "/database/existingSecret", "does not match"),
    ({"settings": {"drainGrace": 10}}, "/settings/drainGrace", "want string"),
    ({"settings": {"drainGrace": "10 s"}}, "/settings/drainGrace", "does not match"),
    ({"settings": {"drainGrace": None}}, "/settings", "missing property 'drainGrace'"),
    ({"settings": {"listen": "0.0.0.0:1"}}, "/settings", "'listen' not allowed"),
    ({"settings": {"maxPayloadBytes": 2_000_000}}, "/settings/maxPayloadBytes", "maximum"),
    ({"tls": {"source": "off"}}, "/tls/source", "'none'"),
    ({"tls": {"extraNames": ["a b"]}}, "/tls/extraNames/0", "does not match"),
    ({"migration": {"shards": 100}}, "/migration/shards", "128"),
    ({"service": {"type": "Headless"}}, "/service/type", "ClusterIP"),
    ({"resources": {"limits": {"memory": "much"}}}, "/resources/limits/memory", "does not match"),
    ({"runAsUser": 0}, "/runAsUser", "minimum"),
    ({"zookeeper": {"servers": "zk1"}}, "/zookeeper/servers", "does not match"),
    ({"trialPostgres": {"storage": "big"}}, "/trialPostgres/storage", "does not match"),
    # What only the values together can show.
    ({"database": {"existingSecret": ""}}, "database: give exactly one of database.existingSecret", "got 0"),
    ({"trialPostgres": {"enabled": True}}, "database: give exactly one of", "got 2"),
    ({"coordinator": "zookeeper"}, "zookeeper: the coordinator zookeeper needs either zookeeper.servers", "got 0"),
    ({"trialZookeeper": {"enabled": True}}, "coordinator: is postgres", "set it to zookeeper"),
    ({"tls": {"source": "existingSecret"}}, "tls.existingSecret: is required", "tls.key"),
    ({"tls": {"source": "certManager"}}, "tls.certManager.issuer: is required", ""),
    ({"tls": {"source": "none", "requireClientCertificates": True}}, "tls.requireClientCertificates: needs TLS", ""),
    ({"autoscaling": {"enabled": True, "minReplicas": 10}}, "autoscaling.minReplicas: must not exceed", "got 10 and 9"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "name", "reason"), REFUSED)
def test_a_wrong_value_is_refused_by_name(values: Values, name: str, reason: str) -> None:
    database = {**DATABASE["database"], **values.get("database", {})}
    done = helm("template", "sw", str(CHART), values={**values, "database": database})
    assert done.returncode != 0
    assert name in done.stderr
    assert reason in done.stderr


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load(SOURCE)
    # Settings that are left out have the node's own default; `global` is any parent's.
    check_same(values, schema, free={"settings", "resources"}, also={"global"})


def check_same(values: dict[str, Any], schema: dict[str, Any], free: set[str], also: set[str]) -> None:
    known = schema["properties"]
    assert set(values) | also == set(known)
    assert schema["additionalProperties"] is False
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in known[name] and name not in free:
            check_same(value, known[name], free=set(), also=set())


def script() -> Any:
    spec = importlib.util.spec_from_file_location("values_table", REPOSITORY / "helm" / "values_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_value_is_described() -> None:
    rows = [name for name, _ in script().described(SOURCE)]
    assert len(rows) == len(set(rows))
    assert set(script().leaves(yaml.safe_load(SOURCE), set(rows))) <= set(rows)


def test_the_table_in_the_readme_says_what_the_comments_say() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert "| `trialPostgres.storage` |" in readme
    assert readme == script().with_table(readme, SOURCE), "python helm/values_table.py"


def test_the_chart_has_the_version_of_what_it_runs() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
