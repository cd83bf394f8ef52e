"""Appends that were done, by producer and sequence, so that a repetition is known."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, Final

from omq.store.errors import DamagedError
from omq.store.interface import Append
from omq.store.layout import NUMBER, THREE, TWO, after, opened, producer_key, sealed

SILENCE: Final = 86_400_000_000  # microseconds after which a producer is forgotten
SEEN_EVERY: Final = 3_600_000_000  # how exactly it is kept when one was there
PRUNED: Final = 64  # sequences that are forgotten together


class Producer:
    """What is known of one producer in one topic.

    Attributes:
        prefix: The beginning of the keys of what it did.
        floor: All below is forgotten, and a repetition.
        kept: The floor up to which rows are deleted.
        highest: The highest sequence stored.
        seen: When it was seen, as it is stored.
    """

    __slots__ = ("floor", "highest", "kept", "prefix", "seen")

    def __init__(self, prefix: bytes, seen: int, floor: int, highest: int) -> None:
        self.prefix = prefix
        self.seen = seen
        self.floor = self.kept = floor
        self.highest = highest


class Producers:
    """The producers of an environment."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], Producer] = {}

    def rollback(self) -> None:
        """What was remembered of a transaction that is not."""
        self._known.clear()

    def forget_topic(self, topic_id: int) -> None:
        """A topic is gone."""
        for known in [known for known in self._known if known[0] == topic_id]:
            del self._known[known]

    def repeated(self, transaction: Any, producer: Producer, write: Append) -> bool:
        """Whether an append was done before: then it has its answer."""
        if write.sequence > producer.highest:
            return False
        answer = (0, 0, 0)  # it had one, which nobody waits for any more
        if write.sequence >= producer.floor:
            key = producer.prefix + NUMBER.pack(write.sequence)
            row = transaction.get(key)
            if row is None:
                return False
            answer = THREE.unpack(opened(key, row))
        write.first, _, write.timestamp = answer
        write.duplicate = True
        return True

    def note(self, transaction: Any, producer: Producer, write: Append, now: int) -> None:
        """An append is done. Also what its producer has the answers of."""
        if not write.duplicate:
            key = producer.prefix + NUMBER.pack(write.sequence)
            transaction.put(key, sealed(key, THREE.pack(write.first, write.count, write.timestamp)))
            if write.sequence > producer.highest:
                producer.highest = write.sequence
        if write.settled > producer.floor:
            producer.floor = write.settled
        pruned = producer.floor - producer.kept >= PRUNED
        if pruned:
            cursor = transaction.cursor()
            self._delete(cursor, producer.prefix, producer.prefix + NUMBER.pack(producer.floor))
            cursor.close()
            producer.kept = producer.floor
        if pruned or now - producer.seen > SEEN_EVERY:
            producer.seen = now
            key = producer_key(b"p", write.topic_id, write.producer)
            transaction.put(key, sealed(key, TWO.pack(now, producer.floor)))

    def of(self, transaction: Any, write: Append) -> Producer:
        """What is known of the producer of an append."""
        known = write.topic_id, write.producer
        producer = self._known.get(known)
        if producer is None:
            key = producer_key(b"p", *known)
            row = transaction.get(key)
            seen, floor = TWO.unpack(opened(key, row)) if row is not None else (0, 0)
            prefix = producer_key(b"d", *known)
            highest = floor - 1
            cursor = transaction.cursor()
            if (cursor.set_range(after(prefix)) and cursor.prev()) or (not cursor.key() and cursor.last()):
                last = bytes(cursor.key())
                if last.startswith(prefix) and len(last) == len(prefix) + 8:
                    (highest,) = NUMBER.unpack(last[-8:])
            cursor.close()
            producer = self._known[known] = Producer(prefix, seen, floor, highest)
        return producer

    @staticmethod
    def _delete(cursor: Any, start: bytes, stop: bytes) -> None:
        """Deletes the rows of a range of keys."""
        found = cursor.set_range(start)
        while found and bytes(cursor.key()) < stop:
            found = cursor.delete() and bool(cursor.key())

    def drop_silent(self, transaction: Any, now: int, limit: int) -> int:
        """Forgets producers that were silent for long; how many, at most `limit`."""
        cursor = transaction.cursor()
        silent: list[bytes] = []
        found = cursor.set_range(b"p")
        while found and cursor.key()[:1] == b"p" and len(silent) < limit:
            key = bytes(cursor.key())
            with suppress(DamagedError, struct.error):  # that stays, and is told to its producer
                if TWO.unpack(opened(key, cursor.value()))[0] < now - SILENCE - SEEN_EVERY:
                    silent.append(key)
            found = cursor.next()
        for key in silent:
            prefix = b"d" + key[1:]
            self._delete(cursor, prefix, after(prefix))
            transaction.delete(key)
        cursor.close()
        if silent:
            self._known.clear()
        return len(silent)
