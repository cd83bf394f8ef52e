"""The answers of appends by producer and sequence, which make repeated appends idempotent."""

from __future__ import annotations

import struct
from collections.abc import Container
from contextlib import suppress
from typing import Any, Final

from omq.store.errors import DamagedError
from omq.store.interface import MAX_ANSWERS, PRODUCER_TIMEOUT_US, Append
from omq.store.lmdb.layout import NUMBER, THREE, TOPIC, TWO, after, producer_key, with_checksum, without_checksum

SEEN_INTERVAL_US: Final = 3_600_000_000  # between two writes of the time of a producer's last append
PRUNE_BATCH: Final = 64  # answers that are deleted together
MAX_CACHED_PRODUCERS: Final = 4096  # the state of others is read from their rows


class ProducerState:
    """The state of one producer in one topic.

    Attributes:
        prefix: The prefix of the keys of its answers.
        floor: Every lower sequence is a repetition, and its answer may be deleted.
        highest: The highest sequence stored.
        rows: The number of its answers.
        seen: The stored time of its last append. It may be `SEEN_INTERVAL_US` old.
    """

    __slots__ = ("floor", "highest", "prefix", "rows", "seen")

    def __init__(self, prefix: bytes, seen: int, floor: int, highest: int, rows: int) -> None:
        self.prefix = prefix
        self.seen = seen
        self.floor = floor
        self.highest = highest
        self.rows = rows


class Producers:
    """The producers of an environment.

    Args:
        exact: Each change of a floor is stored, so that the answers after the next opening are the same as before it.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._cache: dict[tuple[int, bytes], ProducerState] = {}  # in the order of their last append

    def rollback(self) -> None:
        """Clears the cache, which may have the state of an aborted transaction."""
        self._cache.clear()

    def forget_topic(self, topic_id: int) -> None:
        """Drops the producers of a deleted topic from the cache."""
        for known in [known for known in self._cache if known[0] == topic_id]:
            del self._cache[known]

    def is_new(self, write: Append) -> bool:
        """Returns whether the cache shows that an append is not a repetition, and counts its sequence as used."""
        producer = self._cache.get((write.topic_id, write.producer))
        if producer is None or write.sequence <= producer.highest:
            return False
        producer.highest = write.sequence
        return True

    def answer_repetition(self, transaction: Any, producer: ProducerState, write: Append) -> bool:
        """Returns whether an append is a repetition, and fills in its first answer."""
        if write.sequence > producer.highest:
            return False
        answer = (0, 0, 0)  # the producer has confirmed the answer, so it may be deleted
        if write.sequence >= producer.floor:
            key = producer.prefix + NUMBER.pack(write.sequence)
            row = transaction.get(key)
            if row is None:
                return False
            answer = THREE.unpack(without_checksum(key, row))
        write.first, _, write.timestamp = answer
        write.duplicate = True
        return True

    def record(self, transaction: Any, producer: ProducerState, write: Append, now: int) -> None:
        """Stores the answer of an append, and deletes the answers that its producer has confirmed."""
        if not write.duplicate:
            key = producer.prefix + NUMBER.pack(write.sequence)
            transaction.put(key, with_checksum(key, THREE.pack(write.first, write.count, write.timestamp)))
            if write.sequence > producer.highest:
                producer.highest = write.sequence
            producer.rows += 1
            if producer.rows >= MAX_ANSWERS + PRUNE_BATCH:
                producer.rows -= self._delete(transaction, producer.prefix, after(producer.prefix), PRUNE_BATCH)
        changed = self._exact and write.first_outstanding > producer.floor
        if write.first_outstanding > producer.floor:
            pruned = write.first_outstanding // PRUNE_BATCH > producer.floor // PRUNE_BATCH
            producer.floor = write.first_outstanding
            producer.highest = max(producer.highest, producer.floor - 1)
            if pruned:
                stop = producer.prefix + NUMBER.pack(producer.floor)
                producer.rows -= self._delete(transaction, producer.prefix, stop, producer.rows)
                changed = True
        if changed or now - producer.seen > SEEN_INTERVAL_US:
            producer.seen = now
            key = producer_key(b"p", write.topic_id, write.producer)
            transaction.put(key, with_checksum(key, TWO.pack(now, producer.floor)))

    def of(self, transaction: Any, write: Append) -> ProducerState:
        """Returns the state of the producer of an append."""
        known = write.topic_id, write.producer
        producer = self._cache.pop(known, None)
        if producer is None:
            key = producer_key(b"p", *known)
            row = transaction.get(key)
            seen, floor = TWO.unpack(without_checksum(key, row)) if row is not None else (0, 0)
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
        self._cache[known] = producer
        if len(self._cache) > MAX_CACHED_PRODUCERS:
            del self._cache[next(iter(self._cache))]
        return producer

    @staticmethod
    def _delete(transaction: Any, start: bytes, stop: bytes, limit: int) -> int:
        """Deletes at most `limit` rows from the start of a range of keys; returns their number."""
        cursor = transaction.cursor()
        deleted = 0
        found = cursor.set_range(start)
        while found and deleted < limit and bytes(cursor.key()) < stop:
            found = cursor.delete() and bool(cursor.key())
            deleted += 1
        cursor.close()
        return deleted

    def expire(self, transaction: Any, now: int, limit: int, start: bytes, topics: Container[int]) -> bytes:
        """Deletes the state of some producers that have been idle for too long.

        The rows of deleted topics do not count, since it depends on the node how many of them are left.

        Args:
            transaction: The current transaction.
            now: The time by the store's clock.
            limit: The number of producers to check, and the approximate number of rows to delete.
            start: The key to begin at; empty: the first producer.
            topics: The topics that are not deleted.

        Returns:
            The key at which to continue; empty at the end.
        """
        cursor = transaction.cursor()
        idle: list[bytes] = []
        next_key = b""
        checked = 0
        found = cursor.set_range(start or b"p")
        while found and cursor.key()[:1] == b"p":
            key = bytes(cursor.key())
            if TOPIC.unpack_from(key)[1] not in topics:
                found = cursor.set_range(after(key[: TOPIC.size]))
                continue
            if checked == limit:
                next_key = key
                break
            checked += 1
            with suppress(DamagedError, struct.error):  # a damaged row stays; the producer's next append reports it
                if TWO.unpack(without_checksum(key, cursor.value()))[0] < now - PRODUCER_TIMEOUT_US - SEEN_INTERVAL_US:
                    idle.append(key)
            found = cursor.next()
        cursor.close()
        for key in idle:
            prefix = b"d" + key[1:]
            limit -= self._delete(transaction, prefix, after(prefix), max(limit, 1))
            if limit <= 0:
                next_key = key
                break
            transaction.delete(key)
        if idle:
            self._cache.clear()
        return next_key
