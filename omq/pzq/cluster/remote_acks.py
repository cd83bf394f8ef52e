"""Remote acks: acknowledgements of an absent owner's messages, stored until all nodes have confirmed them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omq.pzq.device.queue import RETRY_DELAY_S, DeviceQueue
from omq.pzq.wire import pack
from omq.store.async_store import AsyncStore
from omq.store.errors import OutOfSpace
from omq.store.interface import Acknowledge, Append, TopicState

log = logging.getLogger("omq.pzq")

TOPIC = "acknowledged-elsewhere"

Later = Callable[[float, Callable[[], None]], None]


class RemoteAcks:
    """The remote acks of a node, by key. Lives in one event loop.

    Args:
        store: The store.
        topic: The topic of new ones.
        later: Schedules a call in some seconds, unless the device is closed by then.
    """

    def __init__(self, store: AsyncStore, topic: int, later: Later) -> None:
        self._store = store
        self._topic = topic
        self._later = later
        self._stored: dict[str, tuple[int, int]] = {}  # topic and id of each, by key
        self._storing: dict[str, bool] = {}  # keys that are being written, and whether they are still needed
        self._waiting: list[tuple[set[str], Callable[[], None]]] = []  # callbacks, with the keys that each waits for

    def load(self, state: TopicState) -> list[tuple[str, str]]:
        """Reads one topic; returns the owners and keys."""
        found = []
        for id, _, parts in DeviceQueue(self._store, state, self._later).messages():
            owner, key = (part.decode(errors="replace") for part in parts[:2])
            found.append((owner, key))
            self._stored[key] = state.id, id
        return found

    def add(self, owner: str, key: str) -> None:
        """Stores a remote ack."""
        is_storing = key in self._storing
        self._storing[key] = True
        if not is_storing:
            self._append(owner, key)

    def _append(self, owner: str, key: str) -> None:
        def stored(write: Append) -> None:
            if isinstance(write.error, OutOfSpace):
                self._later(RETRY_DELAY_S, lambda: self._append(owner, key))
                return
            wanted = self._storing.pop(key)
            if write.error is not None:
                log.error("cluster: the remote ack of a message of %s is not stored: %s", owner, write.error)
            elif wanted:
                self._stored[key] = write.topic_id, write.first
            else:  # all nodes have confirmed it meanwhile
                self._ack(write.topic_id, write.first)
            waiting, self._waiting = self._waiting, []
            for keys, call in waiting:
                keys.discard(key)
                if keys:
                    self._waiting.append((keys, call))
                else:
                    call()

        self._store.submit(Append(self._topic, pack([owner.encode(), key.encode()]), 1), stored)

    def forget(self, key: str) -> None:
        """Deletes a remote ack, which all nodes have confirmed."""
        if (position := self._stored.pop(key, None)) is not None:
            self._ack(*position)
        elif key in self._storing:
            self._storing[key] = False

    def when_stored(self, call: Callable[[], None]) -> None:
        """Calls *call* once all remote acks that were added by now are on the disk."""
        if self._storing:
            self._waiting.append((set(self._storing), call))
        else:
            call()

    def _ack(self, topic: int, id: int) -> None:
        def acked(write: Acknowledge) -> None:
            if write.error is not None:
                log.error("cluster: a remote ack is not deleted: %s", write.error)

        self._store.submit(Acknowledge(topic, [(id, id)]), acked)
