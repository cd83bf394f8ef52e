"""Reading ahead: in order, with its errors, and no thread is left."""

import threading
from collections.abc import Generator

import pyarrow  # noqa: F401
import pytest

from omq.spark.topics.prefetch import prefetched
from tests.support.waits import until


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "omq-read-ahead"]


def test_everything_comes_in_order() -> None:
    assert list(prefetched(number for number in range(1000))) == list(range(1000))
    assert threads() == []


def test_one_more_is_gathered_than_is_taken() -> None:
    gathered: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in range(100):
            gathered.append(number)
            yield number

    found = iter(prefetched(items()))
    assert next(found) == 0
    until(lambda: len(gathered) == 3)  # one waits, and one does not fit
    assert next(found) == 1
    until(lambda: len(gathered) == 4)
    assert list(found) == list(range(2, 100))


def test_an_error_comes_after_earlier_items() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise KeyError("two")

    found = iter(prefetched(items()))
    assert next(found) == 1
    with pytest.raises(KeyError, match="two"):
        next(found)
    assert threads() == []


def test_a_consumer_that_stops_ends_the_generator() -> None:
    ended = threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            yield from range(100)
        finally:
            ended.set()

    found = prefetched(items())
    assert next(found) == 0
    found.close()
    assert ended.is_set()
    assert threads() == []


def test_nothing_begins_before_the_first_step() -> None:
    begun: list[bool] = []

    def items() -> Generator[int, None, None]:
        begun.append(True)
        yield 1

    found = prefetched(items())
    assert begun == []
    assert list(found) == [1]
