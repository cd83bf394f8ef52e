"""Which messages were stored in a node's own store, by what their keys say, and which of these it has lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from omq.pzq.cluster.beginnings import NONE, Beginnings
from omq.pzq.keys import KeyRun, Keys, Origin, split
from omq.pzq.queue import Queue
from omq.pzq.wire import stem_of
from omq.store.interface import Log


class Lineage:
    """What a node knows of its own store's past: a directory may be put back as it was before.

    Args:
        store: The store.
        queues: Of the node's own messages; what they have lost is noted there.
        begun: The node's starts before this one, by what keys of the messages of a queue have in common.
        now: The time of this one, in microseconds since 1970.

    Attributes:
        begun: All starts, likewise.
    """

    def __init__(self, store: Log, queues: Iterable[Queue], begun: Mapping[str, Beginnings], now: int) -> None:
        self._store = store
        self._queues = {stem_of(store.id, queue.id): queue for queue in queues}
        self.begun = {
            stem: begun.get(stem, NONE).begun(store.topic(queue.id).last, now) for stem, queue in self._queues.items()
        }

    def is_mine(self, key: str) -> bool:
        """Whether a message was stored in this very store, and is not among those that it has lost."""
        return any(first not in queue.lost for queue, first, _ in self._numbers(_run(key)))

    def came_back(self, keys: Keys) -> None:
        """Messages of this node's own are replicas now: whatever their numbers are in its store, they are not there."""
        for queue, first, last in self._numbers(keys.runs):
            queue.lost.add(first, last)

    def found(self, key: str) -> None:
        """A message that came back is done with: its number is lost no more."""
        for queue, first, last in self._numbers(_run(key)):
            queue.lost.discard(first, last)

    def discard(self, stem: str, ranges: Iterable[tuple[int, int]]) -> None:
        """The same of many that have the same stem."""
        if (queue := self._queues.get(stem)) is not None:
            for first, last in ranges:
                queue.lost.discard(first, last)

    def look_at_clock(self, queue: Queue, now: int) -> bool:
        """Something is stored: whether the clock was set back since the start, and the starts are others now."""
        stem = stem_of(self._store.id, queue.id)
        if now >= self.begun[stem][-1].at:
            return False
        self.begun[stem] = self.begun[stem].set_back(now)
        return True

    def _numbers(self, runs: Iterable[KeyRun]) -> Iterator[tuple[Queue, int, int]]:
        """The numbers in this store, first and last, of those of some messages that were stored there."""
        for head, first, end in runs:
            origin = Origin.of(head)
            if origin is None or (queue := self._queues.get(origin.stem)) is None:
                continue
            # One that has a higher number was stored in a store of which this one is an older copy.
            last = min(origin.base + end - 1, self.begun[origin.stem].upto(origin.stored))
            if origin.base + first <= last:
                yield queue, origin.base + first, last


def _run(key: str) -> list[KeyRun]:
    head, number = split(key)
    return [KeyRun(head, number, number + 1)]
