"""`/metrics`, parsed with Prometheus' own parser."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from omq.broker.core.stats import BrokerStats, TopicStats
from omq.broker.http.metrics import MAX_SERIES, MetricsPage
from tests.support.broker_stats import HOSTILE, statistics, topic


def samples(stats: BrokerStats) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return parsed(MetricsPage().encode(stats)[0].decode())


def parsed(text: str, parse: Any = text_string_to_metric_families) -> dict[tuple[str, Any], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_names_and_values() -> None:
    reader = {
        "kind": "subscriber",
        "listener": "zmtp",
        "name": None,
        "user": None,
        "peer": "p",
        "position": 900,
        "lag": 100,
    }
    stats = statistics(topic("prices", 1, subscriptions=[{**reader, "in_flight": 0}]), failed="EIO")
    found = samples(stats)
    prices = (("topic", "prices"),)
    assert found["omq_broker_messages_published_total", prices] == 1000
    assert found["omq_broker_published_bytes_total", prices] == 1_040_000
    assert found["omq_broker_messages_delivered_total", prices] == 3000
    assert found["omq_broker_topic_messages", prices] == 990
    assert found["omq_broker_topic_bytes", prices] == 1_030_000
    assert found["omq_broker_topic_subscribers", prices] == 1
    assert found["omq_broker_topic_lag_messages", prices] == 100
    assert found["omq_broker_topics", ()] == 1
    assert found["omq_broker_store_failed", ()] == 1
    assert found["omq_broker_store_full", ()] == 0
    assert found["omq_broker_connections", (("listener", "sexp"),)] == 1
    assert found["omq_broker_requests_refused_total", (("code", "topic"),)] == 2
    strong = ("environment", "strong")
    assert found["omq_broker_store_sync_seconds_bucket", (strong, ("le", "0.002"))] == 30
    assert found["omq_broker_store_sync_seconds_bucket", (strong, ("le", "+Inf"))] == 40
    assert found["omq_broker_store_sync_seconds_count", (strong,)] == 40
    assert found["omq_broker_store_commits_total", (strong,)] == 40
    assert found["process_resident_memory_bytes", ()] > 0


def test_a_hostile_name_stays_a_label() -> None:
    name = HOSTILE + '"} 7\\'
    found = samples(statistics(topic(name, 1)))
    assert found["omq_broker_messages_published_total", (("topic", name),)] == 1000


def test_topics_above_the_bound_share_a_series() -> None:
    topics = [topic(f"t{number}", number) for number in range(1, MAX_SERIES + 11)]
    found = samples(statistics(*topics))
    published = {
        labels: value for (name, labels), value in found.items() if name == "omq_broker_messages_published_total"
    }
    assert len(published) == MAX_SERIES + 1
    assert published[("topic", ""),] == 10 * 1000
    assert found["omq_broker_topics", ()] == MAX_SERIES + 10


def test_a_topic_that_keeps_nothing() -> None:
    found = samples(statistics(topic("new", 1, first=0, last=0, messages=0)))
    assert found["omq_broker_topic_messages", (("topic", "new"),)] == 0


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(("accept", "parse"), [("", text_string_to_metric_families), (OPENMETRICS, parse_openmetrics)])
def test_lines_that_were_kept_are_those_of_a_new_page(accept: str, parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are created, changed and deleted around the bound of `MAX_SERIES`."""
    monkeypatch.setattr("omq.broker.http.metrics.MAX_SERIES", 5)
    chance, page = random.Random(7), MetricsPage()
    topics: dict[int, TopicStats] = {}
    for number in range(1, 80):
        for id in chance.sample(sorted(topics), min(len(topics), 2)):
            if chance.random() < 0.4:
                del topics[id]
            else:
                topics[id] = topic(topics[id]["name"], id, published=number, bytes=chance.randrange(1000))
        if len(topics) < 9:
            topics[number] = topic(f"t{number}\u2028{HOSTILE}", number)
        stats = statistics(*chance.sample([*topics.values()], len(topics)))
        kept, fresh = (one.encode(stats, accept)[0].decode() for one in (page, MetricsPage()))
        without = [[line for line in text.split("\n") if "process_" not in line] for text in (kept, fresh)]
        assert without[0] == without[1]
        found = parsed(kept, parse)
        values = {labels: value for (name, labels), value in found.items() if name == "omq_broker_topic_bytes"}
        assert len(values) == min(len(topics), 6)
        assert sum(values.values()) == sum(one["bytes"] for one in topics.values())


def test_topics_that_have_not_changed_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    page, idle, busy = MetricsPage(), topic("idle", 1), topic("busy", 2)
    page.encode(statistics(idle, busy))
    encoded: list[str] = []
    monkeypatch.setattr("omq.broker.http.metrics._row", lambda one: encoded.append(one["name"]) or (0,) * 14)
    page.encode(statistics(idle, topic("busy", 2, published=1001)))
    assert encoded == ["busy"]
