"""Stores the replicas that other nodes send."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omq.pzq.cluster.keys import KeyMap, Keys
from omq.pzq.cluster.replica_batch import ReplicaBatch
from omq.store.async_store import AsyncStore
from omq.store.errors import OutOfSpace
from omq.store.interface import Append


class _Write:
    """A write of replicas, and the callbacks that wait for it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[str], None]] = []


class ReplicaWriter:
    """Stores each replica once, and answers a node when all replicas of its message are stored.

    Args:
        store: The store.
        wanted: Returns the messages of an owner that must be stored.
        stored: Called after each write with the owner, the keys and the write.
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
            answer: Called with the reason of a refusal, or with an empty text.
        """
        pending, first = 1, ""

        def ended(reason: str = "") -> None:
            nonlocal pending, first
            pending, first = pending - 1, first or reason
            if not pending:
                answer(first)

        for batch in batches:
            wanted = self._wanted(origin, batch.keys)
            if storing := self._storing.find(wanted):  # these were sent twice
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
                # Half of them may still fit; the owner asks about the others again.
                self._append(origin, topic, batch.some(set(keys[: len(keys) // 2])), lambda reason: None)
            for call in waiting.calls:
                call("" if write.error is None else f"not stored: {write.error}")

        self._store.submit(Append(topic, batch.records, len(keys)), stored)
