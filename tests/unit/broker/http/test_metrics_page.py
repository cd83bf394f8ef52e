"""The documentation lists exactly the metrics that exist; alert rules and dashboard use only these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from omq.broker.core.stats import BrokerStats, ClusterStats
from omq.broker.http.metrics import MAX_READERS, MAX_SERIES, MetricsPage
from tests.support.broker_stats import statistics, topic
from tests.support.dashboards import METRIC, TARGET, Dashboard, unknown_names

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "reference" / "broker-metrics.md").read_text(encoding="utf-8")
EXAMPLES = DOCS / "examples" / "monitoring"
RULES = yaml.safe_load((EXAMPLES / "omq-broker.rules.yml").read_text(encoding="utf-8"))
DASHBOARD = Dashboard(EXAMPLES / "omq-broker.dashboard.json")

DURABLE = {"name": "n", "position": 1, "lag": 2, "held": True, "active": 3.0}
GROUP = {"name": "g", "lag": 2, "in_flight": 1, "consumers": 1, "active": 3.0}
CLUSTER: ClusterStats = {"name": "c", "node": "n", "role": "leader", "leader": [], "members": [], "trouble": "x"}
STATS: BrokerStats = {**statistics(topic("a", 1, names=[DURABLE], groups=[GROUP])), "cluster": CLUSTER}
TEXT = MetricsPage().encode(STATS)[0].decode()
#: The labels of each sample.
LABELS = {
    sample.name: set(sample.labels) for family in text_string_to_metric_families(TEXT) for sample in family.samples
}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    return [alert["expr"] for alert in alerts()] + DASHBOARD.expressions


def test_every_metric_is_on_the_page() -> None:
    ours = set(re.findall(r"^# TYPE (omq_broker\w+) ", TEXT, re.MULTILINE))
    assert set(re.findall(r"`(omq_broker\w+)`", PAGE)) == ours


def test_without_a_cluster_there_is_no_leader() -> None:
    alone = MetricsPage().encode(statistics())[0].decode()
    assert {"omq_broker_leader 1.0", "omq_broker_cluster_trouble 1.0"} <= {*TEXT.splitlines()}
    assert "omq_broker_leader" not in alone
    assert "omq_broker_cluster_trouble" not in alone


@pytest.mark.parametrize("metric", ["leader", "journal_position", "cluster_trouble"])
def test_rules_and_dashboard_show_the_cluster(metric: str) -> None:
    assert any(f"omq_broker_{metric}" in alert["expr"] for alert in alerts())
    assert any(f"omq_broker_{metric}" in expression for expression in expressions()[len(alerts()) :])


def test_the_page_names_the_bounds() -> None:
    text = " ".join(PAGE.split())
    assert f"the {MAX_SERIES:,} oldest topics" in text
    assert f"{MAX_READERS} of one topic" in text


@pytest.mark.parametrize("expression", expressions())
def test_rules_and_dashboard_use_metrics_and_labels_that_exist(expression: str) -> None:
    assert METRIC.search(expression) or expression.startswith("up")
    assert unknown_names(expression, LABELS) == set()
    assert all(expression.count(left) == expression.count(right) for left, right in ("()", "{}", "[]"))


def test_every_alert_has_what_an_operator_needs() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names)) > 10
    for alert in alerts():
        assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"].keys() == {"summary", "description"}
        for template in alert["annotations"].values():
            metrics = METRIC.findall(alert["expr"])
            known = TARGET.union(*(LABELS.get(metric, set()) for metric in metrics))
            assert set(re.findall(r"\$labels\.(\w+)", template)) <= known


def test_the_guide_lists_the_alerts() -> None:
    guide = (DOCS / "howto" / "monitor-the-broker.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)} == {alert["alert"] for alert in alerts()}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    assert DASHBOARD.misplaced == []
