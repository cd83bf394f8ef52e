"""Rows about consumers: the ack sets of round-robin topics, and the cursors of broadcast topics."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Any, Final

from omq.store.ack_set import PAGE_IDS, AckSet
from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, TOPIC, TOPIC_NUMBER, TWO, rows, topic_key, with_checksum, without_checksum

_PAGE_BYTES: Final = PAGE_IDS // 8
_CURSOR: Final = b"o"


def load_ack_set(transaction: Any, topic_id: int) -> AckSet:
    """Returns the ack set of a topic.

    Raises:
        DamagedError: One of its rows is damaged.
    """
    acks = AckSet()
    try:
        key = topic_key(b"w", topic_id)
        row = transaction.get(key)
        if row is not None:
            acks.floor, acks.last_delivered = TWO.unpack(without_checksum(key, row))
        for key, value in rows(transaction, topic_key(b"s", topic_id)):
            acks.pages[TOPIC_NUMBER.unpack(key)[2]] = int.from_bytes(without_checksum(key, value), "little")
        for key, value in rows(transaction, topic_key(b"r", topic_id)):
            (acks.deliveries[TOPIC_NUMBER.unpack(key)[2]],) = NUMBER.unpack(without_checksum(key, value))
    except struct.error as error:
        raise DamagedError(f"the acks of topic {topic_id} are damaged: {error}", topic_id) from None
    return acks


def put_ack_set(transaction: Any, topic_id: int, acks: AckSet) -> None:
    """Writes the changes of an ack set."""
    key = topic_key(b"w", topic_id)
    transaction.put(key, with_checksum(key, TWO.pack(acks.floor, acks.last_delivered)))
    for number in acks.dirty:
        key = TOPIC_NUMBER.pack(b"s", topic_id, number)
        page = acks.pages.get(number)
        if page is None:
            transaction.delete(key)
        else:
            transaction.put(key, with_checksum(key, page.to_bytes(_PAGE_BYTES, "little")))
    for id in acks.counted:
        key = TOPIC_NUMBER.pack(b"r", topic_id, id)
        deliveries = acks.deliveries.get(id)
        if deliveries is None:
            transaction.delete(key)
        else:
            transaction.put(key, with_checksum(key, NUMBER.pack(deliveries)))
    acks.dirty.clear()
    acks.counted.clear()


def load_cursors(transaction: Any, topic_id: int) -> dict[str, int]:
    """Returns the cursors of a topic by name; -1 for one whose row is damaged."""
    return {name: position for _, name, position in _cursors(transaction, topic_key(_CURSOR, topic_id))}


def load_all_cursors(transaction: Any, topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the cursors of each of these topics that has any, by topic id."""
    found: dict[int, dict[str, int]] = {}
    for topic_id, name, position in _cursors(transaction, _CURSOR):
        if topic_id in topics:  # a deleted topic may have rows left
            found.setdefault(topic_id, {})[name] = position
    return found


def _cursors(transaction: Any, prefix: bytes) -> Iterator[tuple[int, str, int]]:
    """Yields topic id, name and position of each cursor; a position of -1 if the row is damaged."""
    for key, value in rows(transaction, prefix):
        try:
            (position,) = NUMBER.unpack(without_checksum(key, value))
        except (DamagedError, struct.error):
            position = -1
        _, topic_id = TOPIC.unpack_from(key)
        yield topic_id, key[TOPIC.size :].decode(errors="replace"), position
