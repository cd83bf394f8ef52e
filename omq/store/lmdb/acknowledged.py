"""What consumers of round-robin topics have done, in rows: a watermark, bitmaps, counts of deliveries."""

from __future__ import annotations

import struct
from typing import Any

from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, TOPIC_NUMBER, TWO, opened, sealed, topic_key
from omq.store.settled import PAGE, Settled

PAGE_BYTES = PAGE // 8


def load(transaction: Any, topic_id: int) -> Settled:
    """What is settled of a topic; `DamagedError` where that is damaged."""
    try:
        return _load(transaction, topic_id)
    except struct.error as error:
        raise DamagedError(f"what is settled of topic {topic_id} is damaged: {error}", topic_id) from None


def _load(transaction: Any, topic_id: int) -> Settled:
    settled = Settled()
    key = topic_key(b"w", topic_id)
    row = transaction.get(key)
    if row is not None:
        settled.watermark, settled.handed = TWO.unpack(opened(key, row))
    cursor = transaction.cursor()
    for kind in (b"s", b"r"):
        prefix = topic_key(kind, topic_id)
        found = cursor.set_range(prefix)
        while found and cursor.key()[: len(prefix)] == prefix:
            key = bytes(cursor.key())
            number = TOPIC_NUMBER.unpack(key)[2]
            value = opened(key, cursor.value())
            if kind == b"s":
                settled.pages[number] = int.from_bytes(value, "little")
            else:
                (settled.deliveries[number],) = NUMBER.unpack(value)
            found = cursor.next()
    cursor.close()
    return settled


def store(transaction: Any, topic_id: int, settled: Settled) -> None:
    """Puts what has changed."""
    key = topic_key(b"w", topic_id)
    transaction.put(key, sealed(key, TWO.pack(settled.watermark, settled.handed)))
    for number in settled.dirty:
        key = TOPIC_NUMBER.pack(b"s", topic_id, number)
        page = settled.pages.get(number)
        if page is None:
            transaction.delete(key)
        else:
            transaction.put(key, sealed(key, page.to_bytes(PAGE_BYTES, "little")))
    for id in settled.counted:
        key = TOPIC_NUMBER.pack(b"r", topic_id, id)
        deliveries = settled.deliveries.get(id)
        if deliveries is None:
            transaction.delete(key)
        else:
            transaction.put(key, sealed(key, NUMBER.pack(deliveries)))
    settled.dirty.clear()
    settled.counted.clear()
