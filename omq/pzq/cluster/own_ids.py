"""The ids of a node's own messages in its store, as the keys of these have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omq.pzq.cluster.keys import KeyRange, Keys, StoredAt
from omq.pzq.device.queue import DeviceQueue
from omq.pzq.wire import stem_of
from omq.store.interface import Log


class OwnIds:
    """Records which messages the node's own store has given ids, and which of these it has lost.

    Args:
        store: The store.
        queues: Of the node's own messages; what they have lost is noted there.
    """

    def __init__(self, store: Log, queues: Iterable[DeviceQueue]) -> None:
        self._store = store
        self._queues = {stem_of(store.id, queue.id): queue for queue in queues}

    def is_mine(self, key: str) -> bool:
        """Returns whether a message was stored in this very store, and is not among those that it has lost."""
        return any(first not in queue.lost for queue, first, _ in self._ranges(Keys.of([key]).runs))

    def is_beyond(self, key: str) -> bool:
        """Returns whether a message has an id of this store that it has not given yet, so of a later state of it."""
        return any(first > self._store.topic(queue.id).last for queue, first, _ in self._ranges(Keys.of([key]).runs))

    def came_back(self, keys: Keys) -> None:
        """Notes messages of this node that are replicas now: their ids are lost, as their topic has them no more."""
        for queue, first, last in self._ranges(keys.runs):
            queue.lost.add(first, last)

    def found(self, key: str) -> None:
        """Notes that a message that came back is settled: its id is lost no more."""
        for queue, first, last in self._ranges(Keys.of([key]).runs):
            queue.lost.discard(first, last)

    def discard(self, stem: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Notes that of many ids with the same stem."""
        if (queue := self._queues.get(stem)) is not None:
            for first, last in ranges:
                queue.lost.discard(first, last)

    def _ranges(self, runs: Iterable[KeyRange]) -> Iterator[tuple[DeviceQueue, int, int]]:
        """Yields the first and last ids of those messages that are of this store."""
        for head, first, end in runs:
            origin = StoredAt.of(head)
            if (queue := self._queues.get(origin.stem)) is not None:
                yield queue, origin.base + first, origin.base + end - 1
