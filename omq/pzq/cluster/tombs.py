"""What was acknowledged in an owner's place, kept on the disk until all nodes know of it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from omq.pzq.device.queue import AGAIN, Queue
from omq.pzq.wire import pack
from omq.store.async_store import AsyncStore
from omq.store.errors import StoreFull
from omq.store.interface import Append, Settle, TopicState

log = logging.getLogger("omq.pzq")

TOPIC = "acknowledged-elsewhere"

Later = Callable[[float, Callable[[], None]], None]


class Tombs:
    """Keys of such messages. Lives in one event loop.

    Args:
        journal: The store.
        topic: The topic that new ones go to.
        later: Makes a call after some seconds, unless the device has ended by then.
    """

    def __init__(self, journal: AsyncStore, topic: int, later: Later) -> None:
        self._journal = journal
        self._topic = topic
        self._later = later
        self._stored: dict[str, tuple[int, int]] = {}  # topic and number of each, by key
        self._count = 0  # of all that were ever added
        self._storing: dict[int, bool] = {}  # those that are not stored yet, in their order; whether they are wanted
        self._numbers: dict[str, int] = {}  # of these, by key
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # for the first so many of them

    def load(self, state: TopicState) -> list[tuple[str, str]]:
        """What the store has in one topic: owners and keys."""
        found = []
        for id, _, parts in Queue(self._journal, state, self._later).messages():
            owner, key = (part.decode(errors="replace") for part in parts[:2])
            found.append((owner, key))
            self._stored[key] = state.id, id
        return found

    def add(self, owner: str, key: str) -> None:
        """A message of an owner was acknowledged in its place."""
        self._count = number = self._count + 1
        self._storing[number] = True
        self._numbers[key] = number
        record = pack([owner.encode(), key.encode()])

        def submit() -> None:
            self._journal.submit(Append(self._topic, record, 1), stored)

        def stored(write: Append) -> None:
            if isinstance(write.error, StoreFull):
                self._later(AGAIN, submit)
                return
            wanted = self._storing.pop(number)
            if wanted:
                del self._numbers[key]
            while self._waiting and self._waiting[0][0] < next(iter(self._storing), self._count + 1):
                self._waiting.popleft()[1]()
            if write.error is not None:
                log.error("cluster: that a message of %s is done with is not kept: %s", owner, write.error)
            elif wanted:
                self._stored[key] = write.topic_id, write.first
            else:  # all know it by now
                self._settle(write.topic_id, write.first)

        submit()

    def forget(self, key: str) -> None:
        """All know it."""
        if (place := self._stored.pop(key, None)) is not None:
            self._settle(*place)
        elif (number := self._numbers.pop(key, None)) is not None:
            self._storing[number] = False

    def when_stored(self, call: Callable[[], None]) -> None:
        """Makes a call once all are on the disk that were added by now."""
        if self._storing:
            self._waiting.append((self._count, call))
        else:
            call()

    def _settle(self, topic: int, id: int) -> None:
        def settled(write: Settle) -> None:
            if write.error is not None:
                log.error("cluster: the store does not take what is done with: %s", write.error)

        self._journal.submit(Settle(topic, [(id, id)]), settled)
