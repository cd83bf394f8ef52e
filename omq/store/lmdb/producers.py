"""Appends that were done, by producer and sequence, so that a repetition is known."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, Final

from omq.store.errors import DamagedError
from omq.store.interface import MAX_ANSWERS, PRODUCER_TIMEOUT_US, Append
from omq.store.lmdb.layout import NUMBER, THREE, TWO, after, opened, producer_key, sealed

SEEN_INTERVAL_US: Final = 3_600_000_000  # between two records of the last append of a producer
PRUNE_BATCH: Final = 64  # sequences that are forgotten together
MAX_CACHED_PRODUCERS: Final = 4096  # the rows of others are read


class ProducerState:
    """The state of one producer in one topic.

    Attributes:
        prefix: The beginning of the keys of what it did.
        floor: All below is forgotten, and a repetition.
        kept: The floor up to which rows are deleted.
        highest: The highest sequence stored.
        rows: How many answers are kept.
        seen: When it was seen, as it is stored.
    """

    __slots__ = ("floor", "highest", "kept", "prefix", "rows", "seen")

    def __init__(self, prefix: bytes, seen: int, floor: int, highest: int, rows: int) -> None:
        self.prefix = prefix
        self.seen = seen
        self.floor = self.kept = floor
        self.highest = highest
        self.rows = rows


class Producers:
    """The producers of an environment."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], ProducerState] = {}  # who was seen last is last

    def rollback(self) -> None:
        """Forgets what an aborted transaction has cached."""
        self._known.clear()

    def forget_topic(self, topic_id: int) -> None:
        """Forgets the producers of a deleted topic."""
        for known in [known for known in self._known if known[0] == topic_id]:
            del self._known[known]

    def is_new(self, write: Append) -> bool:
        """Returns whether an append is new, as far as is known without reading rows; from now on it is not."""
        producer = self._known.get((write.topic_id, write.producer))
        if producer is None or write.sequence <= producer.highest:
            return False
        producer.highest = write.sequence
        return True

    def repeated(self, transaction: Any, producer: ProducerState, write: Append) -> bool:
        """Returns whether an append is a repetition; then it has its answer."""
        if write.sequence > producer.highest:
            return False
        answer = (0, 0, 0)  # it had one, which its producer has confirmed
        if write.sequence >= producer.floor:
            key = producer.prefix + NUMBER.pack(write.sequence)
            row = transaction.get(key)
            if row is None:
                return False
            answer = THREE.unpack(opened(key, row))
        write.first, _, write.timestamp = answer
        write.duplicate = True
        return True

    def note(self, transaction: Any, producer: ProducerState, write: Append, now: int) -> None:
        """An append is done. Also what its producer has the answers of."""
        if not write.duplicate:
            key = producer.prefix + NUMBER.pack(write.sequence)
            transaction.put(key, sealed(key, THREE.pack(write.first, write.count, write.timestamp)))
            if write.sequence > producer.highest:
                producer.highest = write.sequence
            producer.rows += 1
            if producer.rows >= MAX_ANSWERS + PRUNE_BATCH:
                producer.rows -= self._delete(transaction, producer.prefix, after(producer.prefix), PRUNE_BATCH)
        if write.settled > producer.floor:
            producer.floor = write.settled
        pruned = producer.floor - producer.kept >= PRUNE_BATCH
        if pruned:
            stop = producer.prefix + NUMBER.pack(producer.floor)
            producer.rows -= self._delete(transaction, producer.prefix, stop, producer.rows)
            producer.kept = producer.floor
        if pruned or now - producer.seen > SEEN_INTERVAL_US:
            producer.seen = now
            key = producer_key(b"p", write.topic_id, write.producer)
            transaction.put(key, sealed(key, TWO.pack(now, producer.floor)))

    def of(self, transaction: Any, write: Append) -> ProducerState:
        """Returns the state of the producer of an append."""
        known = write.topic_id, write.producer
        producer = self._known.pop(known, None)
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
            rows = 0
            found = highest >= floor and cursor.set_range(prefix)
            while found and cursor.key()[: len(prefix)] == prefix:
                rows += 1
                found = cursor.next()
            cursor.close()
            producer = ProducerState(prefix, seen, floor, highest, rows)
        self._known[known] = producer
        if len(self._known) > MAX_CACHED_PRODUCERS:
            del self._known[next(iter(self._known))]
        return producer

    @staticmethod
    def _delete(transaction: Any, start: bytes, stop: bytes, limit: int) -> int:
        """Deletes the first rows of a range of keys, at most `limit`; how many."""
        cursor = transaction.cursor()
        deleted = 0
        found = cursor.set_range(start)
        while found and deleted < limit and bytes(cursor.key()) < stop:
            found = cursor.delete() and bool(cursor.key())
            deleted += 1
        cursor.close()
        return deleted

    def drop_silent(self, transaction: Any, now: int, limit: int, start: bytes) -> bytes:
        """Forgets producers that were silent for long, looking at some of them; where to go on, or nothing.

        Args:
            transaction: The one at work.
            now: By the store's clock.
            limit: How many are looked at, and about how many rows are deleted.
            start: Where to begin; nothing: at the first one.
        """
        cursor = transaction.cursor()
        silent: list[bytes] = []
        rest = b""
        looked = 0
        found = cursor.set_range(start or b"p")
        while found and cursor.key()[:1] == b"p":
            key = bytes(cursor.key())
            if looked == limit:
                rest = key
                break
            looked += 1
            with suppress(DamagedError, struct.error):  # that stays, and is reported to its producer
                if TWO.unpack(opened(key, cursor.value()))[0] < now - PRODUCER_TIMEOUT_US - SEEN_INTERVAL_US:
                    silent.append(key)
            found = cursor.next()
        cursor.close()
        for key in silent:
            prefix = b"d" + key[1:]
            limit -= self._delete(transaction, prefix, after(prefix), max(limit, 1))
            if limit <= 0:
                rest = key
                break
            transaction.delete(key)
        if silent:
            self._known.clear()
        return rest
