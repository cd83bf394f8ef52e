"""The histogram of durations."""

import math

import pytest

from omq.broker.core.latency import BOUNDS_S, LatencyHistogram


@pytest.mark.parametrize("nanoseconds", [0, 1, 65_535, 65_537, 131_071, 131_073, 10**6, 10**9, 2**34 - 1])
def test_a_duration_is_counted_in_the_first_bucket_that_holds_it(nanoseconds):
    histogram = LatencyHistogram()
    histogram.record(nanoseconds)
    ((bound, count),) = [(bound, count) for bound, count in histogram.buckets() if count]
    assert count == 1
    assert bound == min(one for one in BOUNDS_S if nanoseconds / 1e9 <= one)
    assert histogram.seconds == nanoseconds / 1e9


def test_durations_above_the_last_bound_share_a_bucket():
    histogram = LatencyHistogram()
    for nanoseconds in (2**34 + 1, 2**40, 2**62):
        histogram.record(nanoseconds)
    assert histogram.buckets()[-1] == (math.inf, 3)
    assert sum(count for _, count in histogram.buckets()) == 3


def test_the_bounds_ascend_from_microseconds_to_seconds():
    assert sorted(BOUNDS_S) == [*BOUNDS_S]
    assert BOUNDS_S[0] < 0.0001
    assert BOUNDS_S[-2] > 10
    assert [bound for bound, _ in LatencyHistogram().buckets()] == [*BOUNDS_S]
