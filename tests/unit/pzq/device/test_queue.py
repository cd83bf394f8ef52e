"""Queues of a device: what they report to a cluster, and when they may be delivered."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from omq.pzq.device.queue import DeviceQueue
from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError
from omq.store.interface import TopicState
from omq.workqueue.consumer import QueueConsumer


class Nothing(QueueConsumer):
    """A consumer that gets nothing."""

    def __init__(self) -> None:
        self.active = True


class Damaged:
    """A reader that finds one message damaged, and others behind it."""

    def __enter__(self) -> Damaged:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def blocks(self, first: int, stop: int) -> Iterator[tuple[bytes, memoryview]]:
        if first <= 3 < stop:
            raise DamagedError("damaged", 1, 3, 3)
        return iter(())


def test_what_cannot_be_read_is_reported_to_the_cluster_and_is_not_finished() -> None:
    store = SimpleNamespace(id="0" * 32, ack_set=lambda id, group="": AckSet(), read=lambda id: Damaged())
    async_store: Any = SimpleNamespace(store=store)
    state = TopicState(1, "delivery", "round_robin", "weak", {}, 1, 5, 0, jumped=((9, 9),))
    store.topic = lambda id: state
    queue = DeviceQueue(async_store, state, lambda seconds, call: None)
    assert list(queue.live()) == []
    assert list(queue.lost) == [(3, 3), (9, 9)]
    assert queue.damaged_count == 1
    assert list(queue.work.waiting_ids(1, 5)) == [(1, 2), (4, 5)]
    assert queue.work.unsaved().ranges == [(3, 3)]


def test_what_is_found_damaged_while_it_is_delivered_is_reported_to_the_cluster() -> None:
    store = SimpleNamespace(id="0" * 32, ack_set=lambda id, group="": AckSet(), read=lambda id: Damaged())
    async_store: Any = SimpleNamespace(store=store)
    queue = DeviceQueue(
        async_store, TopicState(1, "delivery", "round_robin", "weak", {}, 1, 5, 0), lambda seconds, call: None
    )
    finished: list[int] = []
    lost: list[tuple[int, int]] = []
    queue.report_to(finished.append, lambda first, last: lost.append((first, last)))
    reader: Any = Damaged()
    queue.work.serve(reader, Nothing(), 10, 1 << 20)
    assert (lost, queue.damaged_count) == ([(3, 3)], 1)
    assert list(queue.batches([1, 2, 3])) == []
    assert lost == [(3, 3)], "it was found before"


def test_a_queue_that_may_not_be_delivered_is_not_ready() -> None:
    store = SimpleNamespace(id="0" * 32, ack_set=lambda id, group="": AckSet())
    async_store: Any = SimpleNamespace(store=store)
    queue = DeviceQueue(
        async_store, TopicState(1, "delivery", "round_robin", "weak", {}, 1, 5, 0), lambda seconds, call: None
    )
    assert queue.is_ready
    queue.may_deliver = lambda: False
    assert not queue.is_ready
    queue.may_deliver = lambda: True
    queue.block()
    assert not queue.is_ready
