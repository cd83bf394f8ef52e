"""Rates from counters, and quantiles from histograms."""

from __future__ import annotations

import math

import pytest

from omq.broker.core.stats import BrokerStats
from omq.broker.http.rates import SYNC_WINDOW_S, WINDOW_S, Rates, quantile
from tests.support.broker_stats import statistics, topic


def at(moment: float, published: int, number: int = 1) -> BrokerStats:
    return statistics(topic("t", number, published=published, delivered=2 * published), uptime=moment)


def test_rates_are_taken_over_the_window() -> None:
    rates = Rates(at(100.0, 0))
    for second in range(1, 21):
        rates.add(at(100.0 + second, 50 * second if second <= 10 else 500))
    assert rates.of(at(120.0, 500)["topics"], 120.0)[1][0] == 0.0
    now = at(120.0, 500 + 100)
    published, _, delivered, _ = rates.of(now["topics"], 120.0)[1]
    assert published == pytest.approx(100 / WINDOW_S)
    assert delivered == pytest.approx(200 / WINDOW_S)
    assert len(rates._topics) <= WINDOW_S + 2


def test_the_rate_of_a_new_topic_counts_from_zero() -> None:
    rates = Rates(at(100.0, 1000))
    now = statistics(topic("t", 1, published=1000), topic("u", 2, published=30), uptime=103.0)
    found = rates.of(now["topics"], 103.0)
    assert found[1][0] == 0.0
    assert found[2][0] == pytest.approx(10.0)


def test_a_rate_over_no_time_does_not_divide_by_zero() -> None:
    rates = Rates(at(100.0, 0))
    assert rates.of(at(100.0, 1)["topics"], 100.0)[1][0] <= 10.0


def test_a_counter_that_fell_is_no_negative_rate() -> None:
    rates = Rates(at(100.0, 1000))
    assert rates.of(at(101.0, 5)["topics"], 101.0)[1][0] == 0.0


def test_syncs_are_those_of_the_window() -> None:
    first = statistics(uptime=10.0)
    rates = Rates(first)
    nothing = rates.syncs(first)
    assert (nothing.mean, nothing.p50, nothing.p99) == (None, None, None)
    later = statistics(uptime=20.0)
    strong = later["store"]["environments"]["strong"]
    strong["syncs"] += 10
    strong["sync_seconds"] += 0.03
    strong["sync_buckets"] = [(0.001, 10), (0.002, 20), (0.004, 19), (math.inf, 1)]
    now = rates.syncs(later)
    assert now.rate == pytest.approx(1.0)
    assert now.mean == pytest.approx(0.003)
    assert now.p50 == pytest.approx(0.003)
    assert 0.0039 < (now.p99 or 0) <= 0.004
    rates.add(later)
    later["uptime"] += SYNC_WINDOW_S + 1
    rates.add(later)
    assert rates.syncs(later).p50 is None


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ([], 0.5, None),
        ([(1.0, 0), (math.inf, 0)], 0.5, None),
        ([(1.0, 4)], 0.5, 0.5),
        ([(1.0, 0), (2.0, 4), (math.inf, 0)], 0.5, 1.5),
        ([(1.0, 1), (2.0, 0), (math.inf, 9)], 0.99, 2.0),
    ],
)
def test_quantiles(buckets: list[tuple[float, int]], share: float, value: float | None) -> None:
    assert quantile(buckets, share) == value
