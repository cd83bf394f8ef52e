"""Reads topics from LMDB, block by block, and verifies their checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from omq._core import blocks
from omq.store.errors import DamagedError, Gone, StoreError
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.layout import (
    BLOCK,
    STAGED,
    THREE,
    TOPIC_NUMBER,
    block_header,
    block_key,
    description,
    topic_key,
    without_checksum,
)

Damage = Callable[[DamagedError], None]


def seek(transaction: Any, topic_id: int, id: int) -> Any:
    """Returns a cursor at the block that has an id, or at the next block; `None` if there is not any."""
    cursor = transaction.cursor()
    key = block_key(topic_id, id)
    prefix = key[:5]
    found = cursor.set_range(key)
    if found and cursor.key() == key:
        return cursor
    # The id may be inside the block before.
    if (cursor.prev() if found else cursor.last()) and cursor.key()[:5] == prefix:
        first = TOPIC_NUMBER.unpack(cursor.key())[2]
        try:
            count = blocks.read_header(block_header(bytes(cursor.key()), cursor.value())[-1])[1]
        except (DamagedError, ValueError):
            return cursor
        if first + count > id:
            return cursor
    if cursor.set_range(key) and cursor.key()[:5] == prefix:
        return cursor
    cursor.close()
    return None


def block_at(transaction: Any, key: bytes, value: memoryview) -> tuple[int, int, int, bytes, memoryview]:
    """Returns first id, count, timestamp, header and records of a block, without verifying the records' checksums.

    Raises:
        DamagedError: The header is damaged, or the records are missing or have another size.
    """
    kind, _, header = block_header(key, value)
    first, count, timestamp, size = blocks.read_header(header)
    records = value[BLOCK.size :]
    if kind == STAGED:
        records = transaction.get(bytes(records))
        if records is None:
            raise DamagedError(f"{description(key)}: its staged records are missing")
    if len(records) != size:
        raise DamagedError(f"{description(key)} has {len(records)} bytes of records; its header has {size}")
    return first, count, timestamp, header, records


def find_record(transaction: Any, topic_id: int, id: int, oldest: int) -> bytes:
    """Returns one record.

    Raises:
        Gone: The topic does not have it.
        DamagedError: It is damaged.
    """
    cursor = seek(transaction, topic_id, id) if id >= oldest else None
    if cursor is not None:
        first, count, _, _, records = block_at(transaction, bytes(cursor.key()), cursor.value())
        cursor.close()
        if first <= id < first + count:
            try:
                record = blocks.slice(records, id - first, id - first + 1)
                blocks.check(record)
            except ValueError as error:
                raise DamagedError(f"id {id} of topic {topic_id} is damaged: {error}", topic_id, id, id) from None
            return bytes(record)
    raise Gone(f"id {id} is not kept", oldest)


def stored_at(transaction: Any, topic_id: int, id: int) -> int | None:
    """Returns the time by the store's clock at which the block of an id was stored, or else the next block.

    It is `None` without a block, and for a damaged one, whose age is unknown.
    """
    cursor = seek(transaction, topic_id, id)
    if cursor is None:
        return None
    try:
        return block_header(bytes(cursor.key()), cursor.value())[1]
    except DamagedError:
        return None
    finally:
        cursor.close()


def save_damaged_block(directory: Path, transaction: Any, damage: tuple[int, int, int]) -> None:
    """Copies the block that has damaged ids to a file, if there is one."""
    topic_id, first, last = damage
    cursor = seek(transaction, topic_id, first)
    if cursor is None or bytes(cursor.key()) > block_key(topic_id, last):
        return
    directory.mkdir(exist_ok=True)
    path = directory / f"{topic_id}-{first}-{last}.block"
    path.write_bytes(cursor.value())
    cursor.close()


class LmdbReader:
    """A snapshot of a topic. A context manager.

    Args:
        environment: The environment of the topic.
        topic_id: The id of the topic.
        dense: A missing id is damage.
        damage: Called with each damage that the reader finds.
    """

    __slots__ = ("_damage", "_dense", "_environment", "_topic_id", "_transaction", "first", "last")

    def __init__(self, environment: Environment, topic_id: int, dense: bool, damage: Damage) -> None:
        self._environment = environment
        self._topic_id = topic_id
        self._dense = dense
        self._damage = damage
        self._transaction: Any = None
        self.first = 1
        self.last = 0

    def __enter__(self) -> LmdbReader:
        self._transaction = self._environment.begin_read()
        key = topic_key(b"n", self._topic_id)
        try:
            row = self._transaction.get(key)
            if row is not None:
                self.first, self.last, _ = THREE.unpack(without_checksum(key, row))
        except BaseException as error:
            self.__exit__()
            if isinstance(error, lmdb.Error):
                raise StoreError(f"topic {self._topic_id} cannot be read: LMDB: {error}") from error
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        transaction, self._transaction = self._transaction, None
        self._environment.end_read(transaction)

    def blocks(self, start: int, stop: int = 0) -> Iterator[tuple[bytes, memoryview]]:
        try:
            yield from self._blocks(start, stop)
        except lmdb.Error as error:
            # Not a `DamagedError`: the range of affected ids is unknown.
            raise StoreError(f"topic {self._topic_id} cannot be read from id {start}: LMDB: {error}") from error

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[bytes, memoryview]]:
        stop = min(stop or self.last + 1, self.last + 1)
        if start >= stop:
            return
        if start < self.first:
            raise Gone(f"id {start} is not kept; the oldest is {self.first}", self.first)
        prefix = topic_key(b"b", self._topic_id)
        cursor = seek(self._transaction, self._topic_id, start)
        while cursor is not None and start < stop:
            key = bytes(cursor.key())
            if key[:5] != prefix:
                break
            try:
                first, count, timestamp, header, records = block_at(self._transaction, key, cursor.value())
            except (DamagedError, ValueError) as error:
                raise self._damaged(start, self._next_first(cursor, prefix) - 1, stop, str(error)) from None
            if first > start and self._dense:
                raise self._damaged(start, first - 1, stop, "they are missing")
            if first >= stop:
                return
            try:
                whole = blocks.check(records, len(records)) == count
            except ValueError:
                whole = False
            if whole and start <= first and first + count <= stop:
                yield header, records
            elif whole:
                yield self._cut(first, timestamp, records, max(start - first, 0), min(count, stop - first))
            else:
                yield from self._undamaged(first, count, timestamp, records, start, stop)
            start = first + count
            if not cursor.next():
                break
        if self._dense and start < stop:
            raise self._damaged(start, self.last, stop, "they are missing")

    def first_at(self, timestamp: int) -> tuple[int, int]:
        try:
            return self._first_at(timestamp)
        except lmdb.Error as error:
            raise StoreError(f"topic {self._topic_id} cannot be searched: LMDB: {error}") from error

    def _first_at(self, timestamp: int) -> tuple[int, int]:
        low, high = self.first, self.last + 1
        found = high, 0
        while low < high:
            middle = (low + high) // 2
            first, after, when = self._block_time(middle, high)
            if when is not None and when < timestamp:
                low = after
                continue
            if first < high:
                found = max(first, self.first), found[1] if when is None else when
            high = min(first, middle)
        # Missing messages of a dense topic are damage, and may be at or after the time.
        return (low, found[1]) if self._dense else found

    def _block_time(self, id: int, stop: int) -> tuple[int, int, int | None]:
        """Returns the timestamp of the block that has an id, or else of the next block.

        A damaged block gets the timestamp of the next undamaged one. The caller excludes both from its range, so a
        search looks at each damaged block once.

        Args:
            id: The id.
            stop: The id at which to stop looking for a block.

        Returns:
            The first id of the block, or `stop` without one; the id after the undamaged block; and its timestamp,
            `None` if there is no undamaged block below `stop`.
        """
        begin = stop
        prefix = topic_key(b"b", self._topic_id)
        cursor = seek(self._transaction, self._topic_id, id)
        more = cursor is not None
        while more and cursor.key()[:5] == prefix:
            key = bytes(cursor.key())
            first = TOPIC_NUMBER.unpack(key)[2]
            if first >= stop:
                break
            begin = min(begin, first)
            try:
                _, count, timestamp, _ = blocks.read_header(block_header(key, cursor.value())[-1])
            except (DamagedError, ValueError):
                more = cursor.next()
            else:
                return begin, first + count, timestamp
        return begin, stop, None

    @staticmethod
    def _cut(first: int, timestamp: int, records: memoryview, begin: int, end: int) -> tuple[bytes, memoryview]:
        """Returns a block of the records `[begin, end)` of a block, by index."""
        cut = blocks.slice(records, begin, end)
        return blocks.header(first + begin, end - begin, timestamp, len(cut)), cut

    def _undamaged(
        self, first: int, count: int, timestamp: int, records: memoryview, start: int, stop: int
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Yields the records of a block before its first damage, and raises that if it is below `stop`."""
        begin, end = max(start - first, 0), min(count, stop - first)
        for bad, good in blocks.damaged(records, count) or [(0, count)]:
            if good <= begin:
                continue
            if bad >= end:
                break
            if bad > begin:
                yield self._cut(first, timestamp, records, begin, bad)
            raise self._damaged(max(first + bad, start), first + good - 1, stop, "their checksums are wrong")
        yield self._cut(first, timestamp, records, begin, end)

    def _next_first(self, cursor: Any, prefix: bytes) -> int:
        """Returns the first id of the next block, or the topic's next id after the last block."""
        if cursor.next() and cursor.key()[:5] == prefix:
            return int(TOPIC_NUMBER.unpack(cursor.key())[2])
        return self.last + 1

    def _damaged(self, first: int, last: int, stop: int, why: str) -> DamagedError:
        """Reports damage, and returns the error to raise."""
        error = DamagedError(
            f"ids {first} to {last} of topic {self._topic_id} are damaged: {why}", self._topic_id, first, last
        )
        self._damage(error)
        return error
