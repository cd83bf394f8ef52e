"""Named positions of broadcast topics, in rows."""

from __future__ import annotations

import struct
from typing import Any

from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, opened, topic_key


def load(transaction: Any, topic_id: int) -> dict[str, int]:
    """The named positions of a topic; -1 where what is kept under the name is damaged."""
    found: dict[str, int] = {}
    prefix = topic_key(b"o", topic_id)
    cursor = transaction.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key()[: len(prefix)] == prefix:
        key = bytes(cursor.key())
        try:
            (position,) = NUMBER.unpack(opened(key, cursor.value()))
        except (DamagedError, struct.error):
            position = -1
        found[key[len(prefix) :].decode(errors="replace")] = position
        more = cursor.next()
    cursor.close()
    return found
