"""Named positions of broadcast topics, in rows; -1 where what is kept under a name is damaged."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Any, Final

from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, TOPIC, opened, topic_key

_KIND: Final = b"o"


def load(transaction: Any, topic_id: int) -> dict[str, int]:
    """Returns the named positions of a topic."""
    return {name: position for _, name, position in _rows(transaction, topic_key(_KIND, topic_id))}


def load_all(transaction: Any, topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the named positions of each of some topics that has any, by its id."""
    found: dict[int, dict[str, int]] = {}
    for topic_id, name, position in _rows(transaction, _KIND):
        if topic_id in topics:  # rows of one that was deleted go later
            found.setdefault(topic_id, {})[name] = position
    return found


def _rows(transaction: Any, prefix: bytes) -> Iterator[tuple[int, str, int]]:
    """Yields topic, name and position."""
    cursor = transaction.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key()[: len(prefix)] == prefix:
        key = bytes(cursor.key())
        try:
            (position,) = NUMBER.unpack(opened(key, cursor.value()))
        except (DamagedError, struct.error):
            position = -1
        _, topic_id = TOPIC.unpack_from(key)
        yield topic_id, key[TOPIC.size :].decode(errors="replace"), position
        more = cursor.next()
    cursor.close()
