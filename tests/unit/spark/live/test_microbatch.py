"""Microbatches and their batches until Spark has committed them."""

import threading

import pytest

import omq
from omq.spark.live.columns import MessageBatch
from omq.spark.live.receiver import Microbatch


def taken(*numbers: int) -> MessageBatch:
    return MessageBatch.of_messages("tcp://x:1", numbers[0], [(1, len(numbers))], [[b"%d" % one] for one in numbers])


def test_any_number_of_readers_see_the_same_from_the_beginning() -> None:
    found = Microbatch(1)
    assert found.claim()
    seen: list[list[MessageBatch]] = [[] for _ in range(3)]
    threads = [threading.Thread(target=lambda one=one: one.extend(found.follow())) for one in seen]
    parts = [taken(0, 1), taken(2), taken(3, 4)]
    for number, part in enumerate(parts):
        threads[number].start()
        found.add(part)
    found.end(bounded=True)
    for thread in threads:
        thread.join(20)
    assert seen == [parts] * 3
    assert (found.rows, found.bytes, found.bounded) == (5, 5, True)
    assert not found.claim()
    assert list(found.follow()) == parts


def test_a_failed_microbatch_continues_where_it_failed() -> None:
    found = Microbatch(1)
    assert found.claim()
    found.add(taken(0))
    found.end(False, omq.MultipartError("a message of 2 parts"))
    reader = found.follow()
    assert next(reader).first == 0
    with pytest.raises(omq.MultipartError):
        next(reader)
    assert found.claim()
    found.add(taken(1))
    found.end(False)
    assert [one.first for one in found.follow()] == [0, 1]


def test_a_reader_skips_batches_but_not_more_than_exist() -> None:
    found = Microbatch(1)
    for number in range(3):
        found.add(taken(number, number + 10))
    reader = found.follow(skip=1)
    next(reader)
    assert found.read == 0
    next(reader)
    assert found.read == 4
    with pytest.raises(omq.StateError, match="microbatch 1 has 3 batches, and a task had 4"):
        next(found.follow(skip=4))
    found.end(False)
    assert list(found.follow(skip=3)) == []
