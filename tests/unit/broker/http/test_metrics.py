"""Metrics as Prometheus reads them: read back with its own parser."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from omq.broker.core.stats import BrokerStats
from omq.broker.http.metrics import SERIES, registry
from tests.unit.broker.sample import HOSTILE, statistics, topic


def samples(stats: BrokerStats) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry(lambda: stats)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_and_values() -> None:
    reader = {
        "kind": "subscriber",
        "door": "zmtp",
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
    assert found["omq_broker_connections", (("door", "sexp"),)] == 1
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


def test_topics_beyond_the_bound_are_told_together() -> None:
    topics = [topic(f"t{number}", number) for number in range(1, SERIES + 11)]
    found = samples(statistics(*topics))
    published = {
        labels: value for (name, labels), value in found.items() if name == "omq_broker_messages_published_total"
    }
    assert len(published) == SERIES + 1
    assert published[("topic", ""),] == 10 * 1000
    assert found["omq_broker_topics", ()] == SERIES + 10


def test_a_topic_that_keeps_nothing() -> None:
    found = samples(statistics(topic("new", 1, first=0, last=0, messages=0)))
    assert found["omq_broker_topic_messages", (("topic", "new"),)] == 0
