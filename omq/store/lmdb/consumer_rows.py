"""Rows about consumers: what is acknowledged of round-robin topics, and the named positions of broadcast topics."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Any, Final

from omq.store.ack_set import PAGE_IDS, AckSet
from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, TOPIC, TOPIC_NUMBER, TWO, opened, rows, sealed, topic_key

_PAGE_BYTES: Final = PAGE_IDS // 8
_POSITION: Final = b"o"


def load_settled(transaction: Any, topic_id: int) -> AckSet:
    """Returns what is settled of a topic.

    Raises:
        DamagedError: A row of it is damaged.
    """
    settled = AckSet()
    try:
        key = topic_key(b"w", topic_id)
        row = transaction.get(key)
        if row is not None:
            settled.watermark, settled.handed = TWO.unpack(opened(key, row))
        for key, value in rows(transaction, topic_key(b"s", topic_id)):
            settled.pages[TOPIC_NUMBER.unpack(key)[2]] = int.from_bytes(opened(key, value), "little")
        for key, value in rows(transaction, topic_key(b"r", topic_id)):
            (settled.deliveries[TOPIC_NUMBER.unpack(key)[2]],) = NUMBER.unpack(opened(key, value))
    except struct.error as error:
        raise DamagedError(f"what is settled of topic {topic_id} is damaged: {error}", topic_id) from None
    return settled


def put_settled(transaction: Any, topic_id: int, settled: AckSet) -> None:
    """Writes what has changed."""
    key = topic_key(b"w", topic_id)
    transaction.put(key, sealed(key, TWO.pack(settled.watermark, settled.handed)))
    for number in settled.dirty:
        key = TOPIC_NUMBER.pack(b"s", topic_id, number)
        page = settled.pages.get(number)
        if page is None:
            transaction.delete(key)
        else:
            transaction.put(key, sealed(key, page.to_bytes(_PAGE_BYTES, "little")))
    for id in settled.counted:
        key = TOPIC_NUMBER.pack(b"r", topic_id, id)
        deliveries = settled.deliveries.get(id)
        if deliveries is None:
            transaction.delete(key)
        else:
            transaction.put(key, sealed(key, NUMBER.pack(deliveries)))
    settled.dirty.clear()
    settled.counted.clear()


def load_positions(transaction: Any, topic_id: int) -> dict[str, int]:
    """Returns the named positions of a topic; -1 in place of one whose row is damaged."""
    return {name: position for _, name, position in _positions(transaction, topic_key(_POSITION, topic_id))}


def load_all_positions(transaction: Any, topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the named positions, likewise, of each of some topics that has any, by its id."""
    found: dict[int, dict[str, int]] = {}
    for topic_id, name, position in _positions(transaction, _POSITION):
        if topic_id in topics:  # rows of one that was deleted go later
            found.setdefault(topic_id, {})[name] = position
    return found


def _positions(transaction: Any, prefix: bytes) -> Iterator[tuple[int, str, int]]:
    """Yields topic, name and position."""
    for key, value in rows(transaction, prefix):
        try:
            (position,) = NUMBER.unpack(opened(key, value))
        except (DamagedError, struct.error):
            position = -1
        _, topic_id = TOPIC.unpack_from(key)
        yield topic_id, key[TOPIC.size :].decode(errors="replace"), position
