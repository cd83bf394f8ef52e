"""The matcher: the time of a topic among many subscriptions."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from omq._core.queues.matcher import Matcher

TOPIC = b"quotes.0000005.bid"


def _matcher_of(count: int) -> Matcher:
    matcher = Matcher()
    for number in range(count):
        matcher.add(b"quotes.%07d." % number, number % 100)
    return matcher


@pytest.mark.parametrize("subscriptions", [10, 10_000, 1_000_000])
def test_match_one_of_many(benchmark: BenchmarkFixture, subscriptions: int) -> None:
    assert benchmark(_matcher_of(subscriptions).match, TOPIC) == [5]


def test_match_none(benchmark: BenchmarkFixture) -> None:
    assert benchmark(_matcher_of(10_000).match, b"trades.0000005") == []


def test_match_a_prefix_that_a_hundred_peers_share(benchmark: BenchmarkFixture) -> None:
    matcher = Matcher()
    for slot in range(100):
        matcher.add(b"quotes.", slot)
    assert len(benchmark(matcher.match, TOPIC)) == 100


def test_subscribe_and_cancel(benchmark: BenchmarkFixture) -> None:
    matcher = _matcher_of(10_000)

    def there_and_back() -> int:
        matcher.add(b"quotes.9999999.", 7)
        return matcher.remove(b"quotes.9999999.", 7)

    assert benchmark(there_and_back) == 1
