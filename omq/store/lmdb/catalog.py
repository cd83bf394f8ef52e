"""The topics on disk. The catalog stands in the strong environment, also for topics that are elsewhere."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any, Final, NamedTuple

from omq.store.ack_set import AckSet
from omq.store.block_builder import BlockBuilder
from omq.store.errors import DamagedError, StoreError, UnknownTopic
from omq.store.interface import Delivery, MakeTopic, Persistence, TopicState
from omq.store.internal import ReserveIds
from omq.store.lmdb.layout import NEXT_TOPIC, NUMBER, opened, rows, sealed, topic_key

RESERVED_IDS: Final = 1 << 20  # at a time
MAX_TOPIC_ID: Final = 2**32 - 1


class Oldest(NamedTuple):
    """The oldest block of a topic."""

    first: int
    last: int
    size: int  # of its records
    when: int  # it was put, by the store's clock


class StoredTopic:
    """A topic of one environment: what is committed, and what the transaction at work makes of it.

    Only its writer changes it; others read `state`, which changes as a whole.

    Attributes:
        first: The oldest id that is kept, in the transaction at work.
        last: The newest one given.
        bytes: Of records.
        jumped: Ranges of ids that were passed over, in order; of those that are not kept any more the last ones.
        reserved: The highest id that may be given before more are reserved; `None` where there is no need to.
        open: Records that are not yet put.
        oldest: The oldest block; `None`: not known, or the topic has none.
        settled: What is acknowledged; `None`: not read yet.
    """

    __slots__ = (
        "_committed",
        "bytes",
        "delivery",
        "first",
        "id",
        "jumped",
        "last",
        "name",
        "oldest",
        "open",
        "persistence",
        "reserved",
        "settings",
        "settled",
    )

    def __init__(
        self, id: int, name: str, delivery: Delivery, persistence: Persistence, settings: dict[str, Any]
    ) -> None:
        self.id = id
        self.name = name
        self.delivery: Delivery = delivery
        self.persistence: Persistence = persistence
        self.settings = settings
        self.first = 1
        self.last = 0
        self.bytes = 0
        self.jumped: list[tuple[int, int]] = []
        self.reserved: int | None = None
        self.open: BlockBuilder | None = None
        self.oldest: Oldest | None = None
        self.settled: AckSet | None = None
        self._committed: tuple[int, int, int, tuple[tuple[int, int], ...]] = (1, 0, 0, ())

    def stand(self, first: int, last: int, size: int, jumped: list[tuple[int, int]]) -> None:
        """Sets where it stands, as it is committed."""
        self.first, self.last, self.bytes, self.jumped = first, last, size, jumped
        self.open = self.oldest = None
        self.settled = None
        self.commit()

    def commit(self) -> bool:
        """Takes over the changes of the committed transaction; returns whether it gave ids."""
        before = self._committed[1]
        self._committed = self.first, self.last, self.bytes, tuple(self.jumped)
        return self.last != before

    @property
    def state(self) -> TopicState:
        """The committed state."""
        # Made when it is asked for, which is much less often than something is committed.
        return TopicState(self.id, self.name, self.delivery, self.persistence, self.settings, *self._committed)


class Catalog:
    """The rows of all topics.

    Attributes:
        topics: By id.
        next: The id of the next topic, as it is committed.
        damaged: Those of which a row is damaged, and what is: nothing is done with them, nor with what they have.
    """

    def __init__(self) -> None:
        self.topics: dict[int, StoredTopic] = {}
        self.next = 1
        self.damaged: dict[int, DamagedError] = {}
        self._ids: dict[str, int] = {}
        self._deleted: dict[int, StoredTopic] = {}  # perhaps not for good: the transaction may fail

    def load(self, transaction: Any) -> None:
        """Reads what is committed; topics that are known stay the objects that they are."""
        found = {}
        for key, value in rows(transaction, b"t"):
            id = int.from_bytes(key[1:5], "big")
            topic = self.topics.get(id) or self._deleted.get(id)
            try:
                if topic is None:
                    row = json.loads(opened(key, value))
                    topic = StoredTopic(id, row["name"], row["delivery"], row["persistence"], row["settings"])
                found[id] = topic
            except (DamagedError, ValueError, KeyError, TypeError) as error:
                self.damaged[id] = DamagedError(f"topic {id}, whose name cannot be read: {error}", id)
        for key, value in rows(transaction, b"v"):
            id = int.from_bytes(key[1:5], "big")
            if id in found:
                try:
                    (found[id].reserved,) = NUMBER.unpack(opened(key, value))
                except (DamagedError, struct.error) as error:
                    self.damaged[id] = DamagedError(f"topic {found[id].name!r}: {error}", id)
        self.topics = found
        with suppress(DamagedError):  # the creation of a topic reports it
            self.next = self._next(transaction)
        self._deleted.clear()
        self._ids = {topic.name: id for id, topic in found.items()}

    def make(self, transaction: Any, write: MakeTopic) -> StoredTopic | None:
        """Makes a topic, and gives it; `None` if it exists."""
        id = self._ids.get(write.name)
        if id in self.damaged:
            raise self.damaged[id]
        write.found = False
        if id is not None:
            write.topic_id, write.found = id, True
            return None
        id = self._next(transaction)
        if id > MAX_TOPIC_ID:
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
        topic = StoredTopic(id, write.name, write.delivery, write.persistence, dict(write.settings))
        if write.persistence != "strong":
            topic.reserved = RESERVED_IDS
            self._reserve(transaction, id, RESERVED_IDS)
        self.topics[id] = topic
        self._ids[write.name] = id
        write.topic_id = id
        return topic

    def delete(self, transaction: Any, id: int) -> StoredTopic:
        """Deletes the row of a topic."""
        topic = self.topics.pop(id, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic {id}")
        del self._ids[topic.name]
        self._deleted[id] = topic
        transaction.delete(topic_key(b"t", id))
        transaction.delete(topic_key(b"v", id))
        return topic

    def reserve(self, transaction: Any, write: ReserveIds) -> None:
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
