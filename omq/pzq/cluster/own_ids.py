"""The ids of a node's own messages in its store, read from their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omq.pzq.cluster.keys import KeyRange, Keys, StoredAt
from omq.pzq.device.queue import DeviceQueue
from omq.pzq.wire import stem_of
from omq.store.interface import Store


class OwnIds:
    """Decides from keys which messages the node's store has stored, and which of them it has lost.

    Args:
        store: The store.
        queues: The queues of the node's own messages; their `lost` is updated.
    """

    def __init__(self, store: Store, queues: Iterable[DeviceQueue]) -> None:
        self._store = store
        self._queues = {stem_of(store.id, queue.id): queue for queue in queues}

    def is_mine(self, key: str) -> bool:
        """Returns whether a message was stored in this store and was not lost."""
        return any(first not in queue.lost for queue, first, _ in self._ranges(Keys.of([key]).ranges))

    def is_beyond(self, key: str) -> bool:
        """Returns whether a message has an id that this store has not assigned yet: it is an older copy then."""
        return any(first > self._store.topic(queue.id).last for queue, first, _ in self._ranges(Keys.of([key]).ranges))

    def came_back(self, keys: Keys) -> None:
        """Marks the ids of this node's messages that came back as replicas as lost: their topic no longer has them."""
        for queue, first, last in self._ranges(keys.ranges):
            queue.lost.add(first, last)

    def found(self, key: str) -> None:
        """Unmarks the lost id of a message that came back and is finished."""
        for queue, first, last in self._ranges(Keys.of([key]).ranges):
            queue.lost.discard(first, last)

    def discard(self, stem: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Unmarks lost ids with the same stem."""
        if (queue := self._queues.get(stem)) is not None:
            for first, last in ranges:
                queue.lost.discard(first, last)

    def _ranges(self, ranges: Iterable[KeyRange]) -> Iterator[tuple[DeviceQueue, int, int]]:
        """Yields queue, first and last id of those messages that were stored in this store."""
        for head, first, end in ranges:
            origin = StoredAt.of(head)
            if (queue := self._queues.get(origin.stem)) is not None:
                yield queue, origin.base + first, origin.base + end - 1
