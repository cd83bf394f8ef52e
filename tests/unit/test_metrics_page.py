"""The how-to of `omq.metrics` lists exactly the metrics that exist; the dashboard uses all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import omq
from omq.metrics import SocketCollector
from tests.support.dashboards import METRIC, Dashboard, unknown_names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "howto" / "export-metrics.md").read_text(encoding="utf-8")
DASHBOARD = Dashboard(DOCS / "examples" / "monitoring" / "omq-sockets.dashboard.json")


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each sample."""
    with omq.PUSH() as push:
        families = [*SocketCollector([push], registry=None).collect()]
    return {sample.name: {*sample.labels} for family in families for sample in family.samples}


@pytest.fixture(scope="module")
def types() -> dict[str, str]:
    """The type of each metric, by the name of its sample."""
    return {
        family.name + "_total" * (family.type == "counter"): family.type
        for family in SocketCollector(registry=None).collect()
    }


def test_every_metric_is_on_the_page_with_its_type(types: dict[str, str]) -> None:
    assert dict(re.findall(r"^\| `(omq_socket_\w+)` \| (\w+) \|", PAGE, re.MULTILINE)) == types


@pytest.mark.parametrize("expression", [*DASHBOARD.expressions, *DASHBOARD.queries])
def test_the_dashboard_uses_metrics_and_labels_that_exist(expression: str, labels: dict[str, set[str]]) -> None:
    assert METRIC.search(expression)
    assert unknown_names(expression, labels) == set()
    assert all(expression.count(left) == expression.count(right) for left, right in ("()", "{}", "[]"))


def test_the_dashboard_shows_every_metric(labels: dict[str, set[str]]) -> None:
    assert {name for expression in DASHBOARD.expressions for name in METRIC.findall(expression)} == labels.keys()


def test_a_counter_is_shown_as_its_increase(types: dict[str, str]) -> None:
    for expression in DASHBOARD.expressions:
        (metric,) = METRIC.findall(expression)
        assert (types[metric] == "counter") == bool(re.search(r"\b(?:rate|increase)\(", expression)), expression


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    assert DASHBOARD.misplaced == []
