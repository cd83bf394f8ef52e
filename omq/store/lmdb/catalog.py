"""The topics of the store on disk. The strong environment has the catalog of all topics."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from omq.store.ack_set import AckSet
from omq.store.block_builder import BlockBuilder
from omq.store.errors import DamagedError, StoreError, UnknownTopic
from omq.store.interface import AlterTopic, Delivery, MakeTopic, Persistence, TopicState
from omq.store.internal import ReserveIds
from omq.store.lmdb.layout import NEXT_TOPIC, NUMBER, rows, topic_key, with_checksum, without_checksum

RESERVED_IDS: Final = 1 << 20  # ids that one reservation adds
MAX_TOPIC_ID: Final = 2**32 - 1

#: What keeps the records of a topic: one of the two environments, or memory.
Engine = Literal["strong", "weak", "memory"]
ENGINES: Final[Mapping[Persistence, Engine]] = {
    "strong": "strong",
    "weak": "weak",
    "async": "weak",
    "transient": "memory",
}
#: The engines of a replica, where one transaction has all of an entry. Persistence is up to the journal there.
REPLICA_ENGINES: Final[Mapping[Persistence, Engine]] = {
    "strong": "strong",
    "weak": "strong",
    "async": "strong",
    "transient": "memory",
}


class Oldest(NamedTuple):
    """The oldest block of a topic."""

    first: int
    last: int
    size: int  # bytes of its records
    when: int  # the time at which it was written, by the store's clock


class StoredTopic:
    """A topic of one environment: its committed state, and its state in the current transaction.

    Only the environment's writer changes it. Other threads read `state`, which changes atomically.

    Attributes:
        first: The oldest id kept, in the current transaction.
        last: The newest id, in the current transaction.
        bytes: The bytes of its records, in the current transaction.
        jumped: Ranges of ids that were skipped, in order. Below `first`, only the newest ranges are kept.
        engine: What keeps its records.
        reserved: The highest id that may be assigned before more are reserved; `None` for a topic that needs no
            reservation: one of the strong environment, or of a replica.
        open: Records that are not written yet.
        oldest: The oldest block; `None` if it is unknown or the topic is empty.
        ack_sets: The acknowledged ids of its work queue (with the name `""`) and of its consumer groups, by name, as
            far as they were read.
    """

    __slots__ = (
        "_committed",
        "ack_sets",
        "bytes",
        "delivery",
        "engine",
        "first",
        "id",
        "jumped",
        "last",
        "name",
        "oldest",
        "open",
        "owner",
        "persistence",
        "reserved",
        "settings",
    )

    def __init__(
        self,
        id: int,
        name: str,
        delivery: Delivery,
        persistence: Persistence,
        settings: dict[str, Any],
        owner: str,
        engine: Engine,
    ) -> None:
        self.id = id
        self.name = name
        self.delivery: Delivery = delivery
        self.persistence: Persistence = persistence
        self.settings = settings
        self.owner = owner
        self.engine: Engine = engine
        self.first = 1
        self.last = 0
        self.bytes = 0
        self.jumped: list[tuple[int, int]] = []
        self.reserved: int | None = None
        self.open: BlockBuilder | None = None
        self.oldest: Oldest | None = None
        self.ack_sets: dict[str, AckSet] = {}
        self._committed: tuple[int, int, int, tuple[tuple[int, int], ...]] = (1, 0, 0, ())

    def set_committed(self, first: int, last: int, size: int, jumped: list[tuple[int, int]]) -> None:
        """Sets the committed state, as it was read."""
        self.first, self.last, self.bytes, self.jumped = first, last, size, jumped
        self.open = self.oldest = None
        self.ack_sets = {}
        self.commit()

    def commit(self) -> bool:
        """Makes the current state the committed one; returns whether ids were assigned."""
        before = self._committed[1]
        self._committed = self.first, self.last, self.bytes, tuple(self.jumped)
        return self.last != before

    @property
    def state(self) -> TopicState:
        """The committed state."""
        # Created on demand: commits are much more frequent than readers of this.
        return TopicState(
            self.id, self.name, self.delivery, self.persistence, self.settings, *self._committed, self.owner
        )

    @property
    def current(self) -> TopicState:
        """The state in the current transaction. Only the environment's writer reads it."""
        return self.state._replace(first=self.first, last=self.last, bytes=self.bytes, jumped=tuple(self.jumped))


class Catalog:
    """The rows of all topics.

    Args:
        engines: The engine of the topics of each persistence.

    Attributes:
        topics: The topics by id.
        next: The committed id of the next topic.
        damaged: The error of each topic that has a damaged row, by id. The store does not open these topics.
    """

    def __init__(self, engines: Mapping[Persistence, Engine] = ENGINES) -> None:
        self.topics: dict[int, StoredTopic] = {}
        self.next = 1
        self._engines = engines
        self._reserves = engines is ENGINES
        self.damaged: dict[int, DamagedError] = {}
        self._ids: dict[str, int] = {}
        self._deleted: dict[int, StoredTopic] = {}  # by transactions that may still be rolled back
        self._altered: set[int] = set()  # topics with other settings, by transactions that may still be rolled back

    def load(self, transaction: Any) -> None:
        """Reads the committed catalog. Keeps the objects of topics that it knows."""
        found = {}
        for key, value in rows(transaction, b"t"):
            id = int.from_bytes(key[1:5], "big")
            topic = self.topics.get(id) or self._deleted.get(id)
            try:
                if topic is None:
                    row = json.loads(without_checksum(key, value))
                    owner = row.get("owner", "")  # topics of older versions have none
                    persistence = row["persistence"]
                    topic = StoredTopic(
                        id,
                        row["name"],
                        row["delivery"],
                        persistence,
                        row["settings"],
                        owner,
                        self._engines[persistence],
                    )
                elif id in self._altered:
                    topic.settings = json.loads(without_checksum(key, value))["settings"]
                found[id] = topic
            except (DamagedError, ValueError, KeyError, TypeError) as error:
                self.damaged[id] = DamagedError(f"topic {id}, whose name cannot be read: {error}", id)
        for key, value in rows(transaction, b"v"):
            id = int.from_bytes(key[1:5], "big")
            if id in found:
                try:
                    (found[id].reserved,) = NUMBER.unpack(without_checksum(key, value))
                except (DamagedError, struct.error) as error:
                    self.damaged[id] = DamagedError(f"topic {found[id].name!r}: {error}", id)
        self.topics = found
        with suppress(DamagedError):  # the creation of a topic reports it
            self.next = self._next(transaction)
        self._deleted.clear()
        self._altered.clear()
        self._ids = {topic.name: id for id, topic in found.items()}

    def make(self, transaction: Any, write: MakeTopic) -> StoredTopic | None:
        """Creates a topic and returns it; returns `None` if the name exists."""
        id = self._ids.get(write.name)
        if id in self.damaged:
            raise self.damaged[id]
        write.found = False
        if id is not None:
            write.topic_id, write.found = id, True
            return None
        id = self._next(transaction)
        if id > MAX_TOPIC_ID:
            raise StoreError(f"topic {write.name!r} cannot be created: all topic ids up to {MAX_TOPIC_ID} are used")
        self._set_next(transaction, id + 1)
        engine = self._engines[write.persistence]
        topic = StoredTopic(
            id, write.name, write.delivery, write.persistence, dict(write.settings), write.owner, engine
        )
        self._put(transaction, topic, topic.settings)
        if self._reserves and engine != "strong":
            topic.reserved = RESERVED_IDS
            self._reserve(transaction, id, RESERVED_IDS)
        self.topics[id] = topic
        self._ids[write.name] = id
        write.topic_id = id
        return topic

    def alter(self, transaction: Any, write: AlterTopic) -> None:
        """Rewrites the topic's row with other settings. `Applier` of the topic's environment applies them."""
        id = write.topic_id
        if id in self.damaged:
            raise self.damaged[id]
        topic = self.topics.get(id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with the id {id}")
        self._altered.add(id)
        self._put(transaction, topic, write.settings)

    def delete(self, transaction: Any, id: int) -> StoredTopic:
        """Deletes the row of a topic."""
        topic = self.topics.pop(id, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic with the id {id}")
        del self._ids[topic.name]
        self._deleted[id] = topic
        transaction.delete(topic_key(b"t", id))
        transaction.delete(topic_key(b"v", id))
        return topic

    def reserve(self, transaction: Any, write: ReserveIds) -> None:
        """Writes the highest ids that may be assigned."""
        if write.next_topic > self._next(transaction):
            self._set_next(transaction, write.next_topic)
        for id, highest in write.highest.items():
            if id in self.topics:
                self._reserve(transaction, id, highest)

    @staticmethod
    def _put(transaction: Any, topic: StoredTopic, settings: dict[str, Any]) -> None:
        """Writes the row of a topic."""
        key = topic_key(b"t", topic.id)
        row: dict[str, Any] = {
            "name": topic.name,
            "delivery": topic.delivery,
            "persistence": topic.persistence,
            "settings": settings,
        }
        if topic.owner:
            row["owner"] = topic.owner
        transaction.put(key, with_checksum(key, json.dumps(row).encode()))

    @staticmethod
    def _next(transaction: Any) -> int:
        row = transaction.get(NEXT_TOPIC)
        return int(NUMBER.unpack(without_checksum(NEXT_TOPIC, row))[0]) if row is not None else 1

    @staticmethod
    def _set_next(transaction: Any, id: int) -> None:
        transaction.put(NEXT_TOPIC, with_checksum(NEXT_TOPIC, NUMBER.pack(id)))

    @staticmethod
    def _reserve(transaction: Any, id: int, highest: int) -> None:
        key = topic_key(b"v", id)
        transaction.put(key, with_checksum(key, NUMBER.pack(highest)))
