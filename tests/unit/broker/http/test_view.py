"""`/topics.json`: cached texts equal those of a new page."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from omq.broker.core.stats import TopicStats
from omq.broker.http.query import Query
from omq.broker.http.rates import Rates
from omq.broker.http.view import JsonPage
from tests.support.broker_stats import statistics, topic


def test_texts_that_were_kept_are_those_of_a_new_page() -> None:
    """A client that follows changes by `since` has the same topics as one that requests all."""
    chance, page = random.Random(11), JsonPage()
    topics: dict[int, TopicStats] = {}
    rates, revision = Rates(statistics(uptime=0.0)), None
    known: dict[int, Any] = {}
    for number in range(1, 200):
        for id in chance.sample(sorted(topics), min(len(topics), 2)):
            if chance.random() < 0.3:
                del topics[id]
            else:
                topics[id] = topic(f"t{id}", id, published=number, bytes=chance.randrange(1000))
        if len(topics) < 9:
            topics[number] = topic(f"t{number}", number)
        stats = statistics(*topics.values(), uptime=float(number))
        kept, fresh = (json.loads(one.encode(stats, rates)) for one in (page, JsonPage()))
        assert kept.pop("revision") != fresh.pop("revision")
        assert kept == fresh
        assert kept["rates"]["messages_in"] == pytest.approx(sum(one["rate_in"] for one in kept["topics"]))

        news = json.loads(page.encode(stats, rates, Query(since=revision)))
        revision = news["revision"]
        known = {id: known.get(id) for id in news.get("ids", [one["id"] for one in news["topics"]])}
        known.update((one["id"], one) for one in news["topics"])
        assert sorted(known.values(), key=lambda one: one["name"]) == kept["topics"]
        rates.add(stats)


def test_each_topic_has_its_groups_by_name() -> None:
    groups = [
        {"name": name, "lag": lag, "in_flight": 3, "consumers": 2, "active": 1.0} for name, lag in (("b", 9), ("a", 7))
    ]
    stats = statistics(topic("t", 1, groups=groups))
    (found,) = json.loads(JsonPage().encode(stats, Rates(stats)))["topics"]
    assert (found["groups"], found["lag"]) == (groups[::-1], 9)


def test_topics_that_have_not_changed_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    page, idle = JsonPage(), topic("idle", 1)
    first = statistics(idle, topic("busy", 2), uptime=1.0)
    rates = Rates(first)
    page.encode(first, rates)
    encoded: list[str] = []
    monkeypatch.setattr("omq.broker.http.view._topic", lambda one, _: encoded.append(one["name"]) or {})
    page.encode(statistics(idle, topic("busy", 2, published=1001), uptime=2.0), rates)
    assert encoded == ["busy"]


def test_cached_texts_of_deleted_topics_are_dropped() -> None:
    page = JsonPage()
    for number in range(0, 10_000, 100):
        stats = statistics(*(topic(f"t{id}", id) for id in range(number, number + 100)))
        page.encode(stats, Rates(stats))
    assert len(page._texts) <= 2 * 100 + 1024 + 100
