"""The topics that there are. The catalog stands in the strong environment, also for topics that are elsewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from omq.store.errors import DamagedError, StoreError, UnknownTopic
from omq.store.interface import MakeTopic
from omq.store.internal import Reserve
from omq.store.lmdb.layout import NEXT_TOPIC, NUMBER, opened, sealed, topic_key
from omq.store.lmdb.topic import Topic

RESERVED: Final = 1 << 20  # ids reserved at a time
LAST_TOPIC: Final = 2**32 - 1


class Catalog:
    """The rows of all topics.

    Attributes:
        topics: By id.
        next: The id of the next topic, as it is committed.
        damaged: Those of which a row is damaged, and what is: nothing is done with them, nor with what they have.
    """

    def __init__(self) -> None:
        self.topics: dict[int, Topic] = {}
        self.next = 1
        self.damaged: dict[int, DamagedError] = {}
        self._ids: dict[str, int] = {}
        self._deleted: dict[int, Topic] = {}  # perhaps not for good: the transaction may fail

    def load(self, transaction: Any) -> None:
        """Reads what is committed; topics that are known stay the objects that they are."""
        found = {}
        for key, value in self._rows(transaction, b"t"):
            id = int.from_bytes(key[1:5], "big")
            topic = self.topics.get(id) or self._deleted.get(id)
            try:
                if topic is None:
                    row = json.loads(opened(key, value))
                    topic = Topic(id, row["name"], row["delivery"], row["persistence"], row["settings"])
                found[id] = topic
            except (DamagedError, ValueError, KeyError, TypeError) as error:
                self.damaged[id] = DamagedError(f"topic {id}, whose name cannot be read: {error}", id)
        for key, value in self._rows(transaction, b"v"):
            id = int.from_bytes(key[1:5], "big")
            if id in found:
                try:
                    (found[id].reserved,) = NUMBER.unpack(opened(key, value))
                except (DamagedError, struct.error) as error:
                    self.damaged[id] = DamagedError(f"topic {found[id].name!r}: {error}", id)
        self.topics = found
        with suppress(DamagedError):  # that is told to whoever makes a topic
            self.next = self._next(transaction)
        self._deleted.clear()
        self._ids = {topic.name: id for id, topic in found.items()}

    @staticmethod
    def _rows(transaction: Any, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = transaction.cursor()
        found = cursor.set_range(kind)
        while found and cursor.key()[:1] == kind:
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.next()
        cursor.close()

    def make(self, transaction: Any, write: MakeTopic) -> Topic | None:
        """Makes a topic, and gives it; `None` if it exists."""
        id = self._ids.get(write.name)
        if id in self.damaged:
            raise self.damaged[id]
        write.found = False
        if id is not None:
            write.topic_id, write.found = id, True
            return None
        id = self._next(transaction)
        if id > LAST_TOPIC:
            raise StoreError("all ids of topics have been given")
        self._go_on(transaction, id + 1)
        key = topic_key(b"t", id)
        row = {
            "name": write.name,
            "delivery": write.delivery,
            "persistence": write.persistence,
            "settings": write.settings,
        }
        transaction.put(key, sealed(key, json.dumps(row).encode()))
        topic = Topic(id, write.name, write.delivery, write.persistence, dict(write.settings))
        if write.persistence != "strong":
            topic.reserved = RESERVED
            self._reserve(transaction, id, RESERVED)
        self.topics[id] = topic
        self._ids[write.name] = id
        write.topic_id = id
        return topic

    def delete(self, transaction: Any, id: int) -> Topic:
        """Deletes the row of a topic."""
        topic = self.topics.pop(id, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic {id}")
        del self._ids[topic.name]
        self._deleted[id] = topic
        transaction.delete(topic_key(b"t", id))
        transaction.delete(topic_key(b"v", id))
        return topic

    def reserve(self, transaction: Any, write: Reserve) -> None:
        """Puts the highest ids that may be given."""
        if write.next_topic > self._next(transaction):
            self._go_on(transaction, write.next_topic)
        for id, highest in write.highest.items():
            if id in self.topics:
                self._reserve(transaction, id, highest)

    @staticmethod
    def _next(transaction: Any) -> int:
        row = transaction.get(NEXT_TOPIC)
        return int(NUMBER.unpack(opened(NEXT_TOPIC, row))[0]) if row is not None else 1

    @staticmethod
    def _go_on(transaction: Any, id: int) -> None:
        transaction.put(NEXT_TOPIC, sealed(NEXT_TOPIC, NUMBER.pack(id)))

    @staticmethod
    def _reserve(transaction: Any, id: int, highest: int) -> None:
        key = topic_key(b"v", id)
        transaction.put(key, sealed(key, NUMBER.pack(highest)))
