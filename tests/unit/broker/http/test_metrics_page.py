"""The page that lists the metrics has all of them, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from omq.broker.http.metrics import SERIES, registry
from tests.unit.broker.sample import statistics, topic

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "broker.md").read_text(encoding="utf-8")


def test_every_metric_is_on_the_page() -> None:
    stats = statistics(topic("a", 1))
    names = set()
    for family in registry(lambda: stats).collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        names.add(family.name + suffix)
    ours = {name for name in names if name.startswith("omq_broker")}
    assert set(re.findall(r"`(omq_broker\w+)`", PAGE)) == ours


def test_the_page_names_the_bound() -> None:
    assert f"the {SERIES:,} oldest topics" in PAGE
