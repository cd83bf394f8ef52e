"""The histogram of durations."""

import math

from omq.broker.core.latency import BOUNDS_S, LatencyHistogram


def test_a_duration_is_counted_in_the_first_bucket_that_holds_it():
    histogram = LatencyHistogram()
    for seconds in (0.0, 0.0001, 0.000101, 0.0025, 29.0, 1e9):
        histogram.record(seconds)
    assert {bound: count for bound, count in histogram.buckets() if count} == {
        0.0001: 2,
        0.00025: 1,
        0.0025: 1,
        30.0: 1,
        math.inf: 1,
    }
    assert histogram.seconds == sum((0.0001, 0.000101, 0.0025, 29.0, 1e9))


def test_the_bounds_ascend_and_the_last_one_holds_everything():
    assert sorted(BOUNDS_S) == [*BOUNDS_S]
    assert math.isinf(BOUNDS_S[-1])
    assert [bound for bound, _ in LatencyHistogram().buckets()] == [*BOUNDS_S]
