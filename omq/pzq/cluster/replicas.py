"""The replicas that other nodes send, until they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omq.pzq.cluster.keys import KeyMap, Keys
from omq.pzq.cluster.replica_batch import ReplicaBatch
from omq.store.async_store import AsyncStore
from omq.store.errors import OutOfSpace
from omq.store.interface import Append


class _Write:
    """Replicas that are with the store, and the calls that wait for them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[str], None]] = []


class ReplicaWriter:
    """Stores each replica once, and answers a node when all that it has sent together are stored.

    Args:
        store: The store.
        wanted: Returns which of an owner's messages are to be stored.
        stored: Called with an owner and keys after each write, with its result.
    """

    def __init__(
        self,
        store: AsyncStore,
        wanted: Callable[[str, Sequence[str]], Sequence[str]],
        stored: Callable[[str, Keys, Append], None],
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._stored = stored
        self._storing: KeyMap[_Write] = KeyMap()

    def take(self, origin: str, topic: int, batches: list[ReplicaBatch], answer: Callable[[str], None]) -> None:
        """Stores replicas.

        Args:
            origin: The owner of the messages.
            topic: The topic of its replicas.
            batches: The messages.
            answer: Called with the reason why they are refused, or with nothing.
        """
        pending, first = 1, ""

        def ended(reason: str = "") -> None:
            nonlocal pending, first
            pending, first = pending - 1, first or reason
            if not pending:
                answer(first)

        for batch in batches:
            wanted = self._wanted(origin, batch.keys)
            if storing := self._storing.find(wanted):  # they were sent before
                for _, write in storing:
                    pending += 1
                    write.calls.append(ended)
                wanted = [key for key in wanted if key not in self._storing]
            if wanted:
                pending += 1
                self._append(origin, topic, batch if len(wanted) == len(batch.keys) else batch.some(set(wanted)), ended)
        ended()

    def _append(self, origin: str, topic: int, batch: ReplicaBatch, ended: Callable[[str], None]) -> None:
        keys, size, waiting = batch.keys, len(batch.records), _Write()
        waiting.calls.append(ended)
        self._storing.put(keys, waiting)
        self._store.waiting += size

        def stored(write: Append) -> None:
            self._store.waiting -= size
            self._storing.take(keys)
            self._stored(origin, keys, write)
            if isinstance(write.error, OutOfSpace) and len(keys) > 1:
                # Where not all of them have room, half may: the others are asked about again.
                self._append(origin, topic, batch.some(set(keys[: len(keys) // 2])), lambda reason: None)
            for call in waiting.calls:
                call("" if write.error is None else f"not stored: {write.error}")

        self._store.submit(Append(topic, batch.records, len(keys)), stored)
