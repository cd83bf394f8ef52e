"""`/metrics`, parsed with Prometheus' own parser."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from omq.broker.core.stats import BrokerStats, CursorStats, GroupStats, TopicStats
from omq.broker.http.metrics import MAX_READERS, MAX_SERIES, SAMPLES, MetricsPage
from omq.store.interface import UNCLEAN_SHUTDOWN
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
    assert found["omq_broker_max_connections", (("listener", "zmtp"),)] == 896
    full = ("listener", "zmtp"), ("reason", "descriptors")
    assert found["omq_broker_accepts_failed_total", full] == 2
    assert found["omq_broker_handshake_failures_total", (("reason", "authentication"),)] == 2
    assert found["omq_broker_requests_refused_total", (("code", "topic"),)] == 2
    strong = ("environment", "strong")
    assert found["omq_broker_store_sync_seconds_bucket", (strong, ("le", "0.002"))] == 30
    assert found["omq_broker_store_sync_seconds_bucket", (strong, ("le", "+Inf"))] == 40
    assert found["omq_broker_store_sync_seconds_count", (strong,)] == 40
    assert found["omq_broker_store_commits_total", (strong,)] == 40
    assert found["omq_broker_store_bytes", (strong,)] == 4 * 2**20
    assert found["omq_broker_store_used_bytes", (strong,)] == 3 * 2**20
    strong = ("persistence", "strong")
    assert found["omq_broker_publish_seconds_bucket", (("le", "0.01"), strong)] == 99
    assert found["omq_broker_publish_seconds_count", (strong,)] == 100
    assert found["omq_broker_publish_seconds_sum", (strong,)] == 0.5
    assert found["process_resident_memory_bytes", ()] > 0


def test_damage_is_counted_and_an_unclean_shutdown_is_not() -> None:
    damage = ["topic 'prices': messages 3 to 9 are damaged and quarantined"]
    for findings, number in ((damage, 1), ([UNCLEAN_SHUTDOWN], 0), ([UNCLEAN_SHUTDOWN, *damage], 1)):
        assert samples(statistics(findings=findings))["omq_broker_store_findings", ()] == number


def test_each_fate_of_messages_has_its_counter() -> None:
    counts = {"delivered": 2, "redelivered": 3, "dead_lettered": 5, "rejected": 7, "dropped": 11, "expired": 13}
    found = samples(statistics(topic("jobs", 1, blocked=17, delivered_bytes=19, **counts)))
    assert {name: found[f"omq_broker_messages_{name}_total", (("topic", "jobs"),)] for name in counts} == counts
    assert found["omq_broker_topic_blocked_messages", (("topic", "jobs"),)] == 17
    assert found["omq_broker_delivered_bytes_total", (("topic", "jobs"),)] == 19


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


def test_a_work_queue_has_its_waiting_messages_and_those_in_flight() -> None:
    found = samples(statistics(topic("jobs", 1, delivery="round-robin", backlog=7, in_flight=3)))
    assert found["omq_broker_topic_waiting_messages", (("topic", "jobs"),)] == 7
    assert found["omq_broker_topic_in_flight_messages", (("topic", "jobs"),)] == 3
    assert found["omq_broker_topic_lag_messages", (("topic", "jobs"),)] == 7


# ------------------------------------------------------------------ durable subscriptions


def durable(name: str, lag: int = 0, active: float = 1000.0, held: bool = False) -> CursorStats:
    return {"name": name, "position": 900, "lag": lag, "active": active, "held": held}


def subscriptions(stats: BrokerStats) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Returns lag, last activity and number of open ones by topic and name."""
    found = samples(stats)
    names = ("lag_messages", "last_activity_timestamp_seconds", "open")
    series = [labels for name, labels in found if name == "omq_broker_subscription_lag_messages"]
    return {
        (dict(labels)["topic"], dict(labels)["subscription"]): tuple(
            found[f"omq_broker_subscription_{name}", labels] for name in names
        )
        for labels in series
    }


def test_each_durable_subscription_has_its_lag() -> None:
    names = [durable("billing", 100, 5.0, held=True), durable("abandoned", 1000, 2.0)]
    stats = statistics(topic("orders", 1, names=names), topic("other", 2))
    assert subscriptions(stats) == {
        ("orders", "billing"): (100, 5.0, 1),
        ("orders", "abandoned"): (1000, 2.0, 0),
    }
    assert samples(stats)["omq_broker_topic_durable_subscriptions", (("topic", "orders"),)] == 2


def test_hostile_names_of_subscriptions_stay_labels() -> None:
    name = HOSTILE + '"} 7\\'
    assert subscriptions(statistics(topic("a", 1, names=[durable(name, 3)])))["a", name] == (3, 1000.0, 0)


def test_the_subscriptions_of_a_topic_above_the_bound_share_a_series() -> None:
    names = [durable(f"n{number}", number, 1000.0 - number, held=True) for number in range(MAX_READERS + 3)]
    found = subscriptions(statistics(topic("a", 1, names=names), topic("b", 2, names=[durable("n0")])))
    assert len(found) == MAX_READERS + 2
    last = MAX_READERS + 2
    assert found["a", ""] == (last, 1000.0 - last, 3)
    assert found["a", f"n{MAX_READERS - 1}"] == (MAX_READERS - 1, 1000.0 - MAX_READERS + 1, 1)
    assert found["b", "n0"] == (0, 1000.0, 0)


@pytest.mark.slow
def test_the_subscriptions_of_all_topics_are_bounded() -> None:
    names = [durable(f"n{number}", 5) for number in range(MAX_READERS)]
    topics = [topic(f"t{number}", number, names=names) for number in range(1, MAX_SERIES + 11)]
    topics[-1] = topic("t", MAX_SERIES + 11, names=[durable("slow", 9)])
    found = subscriptions(statistics(*topics))
    own = [name for _, name in found if name]
    assert len(own) == MAX_SERIES
    assert len(found) == MAX_SERIES + (MAX_SERIES - MAX_SERIES // MAX_READERS) + 1
    assert found["t1000", ""] == (5, 1000.0, 0)
    assert found["", ""] == (9, 1000.0, 0)


# ------------------------------------------------------------------ consumer groups


def group(name: str, lag: int = 0, in_flight: int = 0, consumers: int = 0, active: float = 1000.0) -> GroupStats:
    return {"name": name, "lag": lag, "in_flight": in_flight, "consumers": consumers, "active": active}


def groups(stats: BrokerStats) -> dict[tuple[str, str], tuple[float, ...]]:
    """Returns lag, messages in flight, consumers and last activity by topic and group."""
    found = samples(stats)
    names = ("lag_messages", "in_flight_messages", "consumers", "last_activity_timestamp_seconds")
    series = [labels for name, labels in found if name == "omq_broker_group_lag_messages"]
    return {
        (dict(labels)["topic"], dict(labels)["group"]): tuple(
            found[f"omq_broker_group_{name}", labels] for name in names
        )
        for labels in series
    }


def test_each_group_has_its_lag_and_its_consumers() -> None:
    name = HOSTILE + '"} 7\\'
    some = [group("billing", 100, 7, 2, 5.0), group(name, 1000)]
    stats = statistics(topic("orders", 1, names=[durable("n", 3)], groups=some), topic("other", 2), topic("x", 3))
    assert groups(stats) == {("orders", "billing"): (100, 7, 2, 5.0), ("orders", name): (1000, 0, 0, 1000.0)}
    assert subscriptions(stats) == {("orders", "n"): (3, 1000.0, 0)}
    assert samples(stats)["omq_broker_topic_lag_messages", (("topic", "orders"),)] == 1000


def test_the_groups_of_a_topic_above_the_bound_share_a_series() -> None:
    """The largest lag, the earliest activity, and sums of the others."""
    some = [group(f"g{number}", number, 3, 2, 1000.0 - number) for number in range(MAX_READERS + 3)]
    found = groups(statistics(topic("a", 1, groups=some), topic("b", 2, groups=[group("g0")])))
    assert len(found) == MAX_READERS + 2
    last = MAX_READERS + 2
    assert found["a", ""] == (last, 9, 6, 1000.0 - last)
    assert found["a", f"g{MAX_READERS - 1}"] == (MAX_READERS - 1, 3, 2, 1000.0 - MAX_READERS + 1)


@pytest.mark.slow
def test_groups_and_durable_subscriptions_have_separate_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.broker.http.metrics.MAX_SERIES", 3 * MAX_READERS)
    names = [durable(f"n{number}", 5) for number in range(MAX_READERS)]
    some = [group(f"g{number}", 6) for number in range(MAX_READERS)]
    topics = [topic(f"t{number}", number, names=names, groups=some) for number in range(1, 3 * MAX_READERS + 11)]
    stats = statistics(*topics)
    for found in (groups(stats), subscriptions(stats)):
        assert len([name for _, name in found if name]) == 3 * MAX_READERS
        assert ("", "") in found
    assert groups(stats)["", ""] == (6, 0, 0, 1000.0)


def test_expired_readers_are_counted() -> None:
    found = samples(statistics(topic("a", 1, readers_expired=4)))
    assert found["omq_broker_readers_expired_total", (("topic", "a"),)] == 4


def test_a_topic_that_keeps_nothing() -> None:
    found = samples(statistics(topic("new", 1, first=0, last=0, messages=0)))
    assert found["omq_broker_topic_messages", (("topic", "new"),)] == 0


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.slow
@pytest.mark.parametrize(("accept", "parse"), [("", text_string_to_metric_families), (OPENMETRICS, parse_openmetrics)])
def test_lines_that_were_kept_are_those_of_a_new_page(accept: str, parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are created, changed and deleted around the bound of `MAX_SERIES`."""
    monkeypatch.setattr("omq.broker.http.metrics.MAX_SERIES", 5)
    monkeypatch.setattr("omq.broker.http.metrics.MAX_READERS", 2)
    chance, page = random.Random(7), MetricsPage()
    topics: dict[int, TopicStats] = {}
    for number in range(1, 80):
        for id in chance.sample(sorted(topics), min(len(topics), 2)):
            if chance.random() < 0.4:
                del topics[id]
            else:
                names = [durable(HOSTILE * at, chance.randrange(9)) for at in range(1, chance.randrange(5))]
                some = [group(HOSTILE * at, chance.randrange(9)) for at in range(1, chance.randrange(5))]
                changes: dict[str, Any] = {"published": number, "bytes": chance.randrange(1000)}
                changes |= {"names": names, "groups": some}
                topics[id] = topic(topics[id]["name"], id, **changes)
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
    monkeypatch.setattr("omq.broker.http.metrics._row", lambda one: encoded.append(one["name"]) or (0,) * len(SAMPLES))
    page.encode(statistics(idle, topic("busy", 2, published=1001)))
    assert encoded == ["busy"]
