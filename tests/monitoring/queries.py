"""What queries in PromQL ask for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from tests.monitoring.exposed import Families

# Given by Prometheus to everything that it scrapes.
TARGET_LABELS = frozenset({"job", "instance"})
_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


@dataclass(frozen=True)
class Selected:
    """A metric that a query selects, with the labels that it looks at."""

    name: str
    labels: frozenset[str]


def selected(query: str) -> list[Selected]:
    """Return what a query selects; variables of Grafana are filled in. Raises ValueError if it is malformed."""
    query = query.replace("$__rate_interval", "1m")
    return list(_selected(promql_parser.parse(query), frozenset()))


def _selected(node: Any, grouped: frozenset[str]) -> Iterator[Selected]:
    """`grouped` are the labels by which something around the node groups."""
    match node:
        case promql_parser.VectorSelector():
            yield Selected(node.name or "", grouped | {matcher.name for matcher in node.matchers.matchers})
        case promql_parser.MatrixSelector():
            yield from _selected(node.vector_selector, grouped)
        case promql_parser.AggregateExpr():
            labels = node.modifier.labels if node.modifier is not None else ()
            yield from _selected(node.expr, grouped.union(labels))
        case promql_parser.BinaryExpr():
            yield from _selected(node.lhs, grouped)
            yield from _selected(node.rhs, grouped)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selected(argument, grouped)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from _selected(node.expr, grouped)
        case _:
            return


def unknown(query: str, families: Families) -> list[str]:
    """Return what a query asks for that no node exposes."""
    wrong = []
    for one in selected(query):
        family = families.get(one.name)
        labels = TARGET_LABELS
        if family is None:
            family = families.get(_HISTOGRAM.sub("", one.name))
            labels = TARGET_LABELS | ({"le"} if one.name.endswith("_bucket") else frozenset())
            if family is None or family.kind != "histogram":
                wrong.append(one.name)
                continue
        wrong += [f"{one.name}{{{label}}}" for label in sorted(one.labels - labels - family.labels)]
    return wrong
