"""The documentation lists exactly the metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from omq.broker.http.metrics import MAX_SERIES, MetricsPage
from tests.support.broker_stats import statistics, topic

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "broker.md").read_text(encoding="utf-8")


def test_every_metric_is_on_the_page() -> None:
    text, _ = MetricsPage().encode(statistics(topic("a", 1)))
    ours = set(re.findall(r"^# TYPE (omq_broker\w+) ", text.decode(), re.MULTILINE))
    assert set(re.findall(r"`(omq_broker\w+)`", PAGE)) == ours


def test_the_page_names_the_bound() -> None:
    assert f"the {MAX_SERIES:,} oldest topics" in PAGE
