"""The table of metrics, the alert rules and the dashboard, against what a node exposes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, DATABASE, check_schema, manifests, one
from tests.monitoring.exposed import PREFIX, Families, families_of_a_node
from tests.monitoring.queries import TARGET_LABELS, selected, unknown
from tests.support.wheels import REPOSITORY

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
DOCS = REPOSITORY / "docs" / "monitoring.md"
ROW = re.compile(r"\| `(?P<name>\w+)(?:\{(?P<labels>[\w,]+)\})?` \| (?P<kind>\w+) \| .+ \|")
UNITS = ("_seconds", "_bytes", "_transactions", "_info")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.fixture
async def families(database: str, tmp_path: Path) -> Families:
    return await families_of_a_node(database, tmp_path)


async def test_all_that_is_written_of_metrics_is_so(families: Families) -> None:
    documented = {}
    for row in ROW.finditer(DOCS.read_text(encoding="utf-8")):
        labels = frozenset(row["labels"].split(",")) if row["labels"] else frozenset()
        documented[f"{PREFIX}{row['name']}"] = (row["kind"], labels)
    assert documented == {name: (family.kind, family.labels) for name, family in families.items()}
    for name, family in families.items():
        assert family.help.endswith("."), name
        assert ("_total" in name) == (family.kind == "counter"), name
        assert family.kind != "histogram" or name.endswith(UNITS), name
    for rule in rules():
        assert unknown(rule["expr"], families) == [], rule["alert"]
    for panel in panels():
        for target in panel["targets"]:
            assert unknown(target["expr"], families) == [], panel["title"]


def test_every_alert_says_what_is_wrong_how_bad_it_is_and_where_to_read_on() -> None:
    headings = re.findall(r"^### (Shardwheel\w+)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        texts = rule["annotations"]
        assert set(texts) == {"summary", "description"}, rule["alert"]
        # What a text names has to be left over by the query.
        grouped = set(re.findall(r"by \(([\w, ]+)\)", rule["expr"]))
        kept = {label for group in grouped for label in group.split(", ")}
        if not kept:
            kept = {*TARGET_LABELS, "pool"}
        named = set(re.findall(r"\$labels\.(\w+)", texts["summary"] + texts["description"]))
        assert named <= kept, rule["alert"]


def test_every_panel_shows_something_of_the_installation_that_is_chosen() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert set(re.findall(r"\$(?!__)\{?(\w+)", target["expr"])) <= variables
            assert all("job" in each.labels for each in selected(target["expr"])), panel["title"]
    ends = [
        (panel["gridPos"]["y"], panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for panel in panels()
    ]
    assert all(end <= 24 for _, _, end in ends)


def test_a_query_for_what_does_not_exist_is_found() -> None:
    there: Families = {}
    assert unknown('sum by (job) (rate(shardwheel_nothing_total{a="b"}[5m]))', there) == ["shardwheel_nothing_total"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        selected("sum by (job (x)")


def test_the_chart_hands_both_files_on_as_they_are() -> None:
    assert not {"PrometheusRule"} & {each["kind"] for each in manifests(DATABASE)}
    values = {
        **DATABASE,
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "grafanaDashboard": {"enabled": True},
    }
    found = manifests(values)
    made = one(found, "PrometheusRule")
    assert made["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    assert made["metadata"]["labels"]["release"] == "prometheus"
    board = one(found, "ConfigMap", "sw-shardwheel-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["shardwheel.json"]) == json.loads(DASHBOARD.read_text(encoding="utf-8"))
    check_schema(board, "1.32")
