"""What is damaged: ids that cannot be read any more, and a copy of what lies in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omq.store.errors import DamagedError
from omq.store.lmdb.layout import NUMBER, TOPIC_NUMBER, block_key, opened
from omq.store.lmdb.reader import seek

Damage = tuple[int, int, int]  # topic, first id, last id


def listed(transaction: Any, prefix: bytes = b"q") -> Iterator[Damage]:
    """What is noted in an environment; with another prefix, ids that are missing for another reason."""
    cursor = transaction.cursor()
    found = cursor.set_range(prefix)
    while found and cursor.key()[: len(prefix)] == prefix:
        key = bytes(cursor.key())
        with contextlib.suppress(DamagedError):
            _, topic_id, first = TOPIC_NUMBER.unpack(key)
            yield topic_id, first, NUMBER.unpack(opened(key, cursor.value()))[0]
        found = cursor.next()
    cursor.close()


def keep_aside(directory: Path, transaction: Any, damage: Damage) -> None:
    """Copies what lies where ids are damaged to a file of their own, as far as that goes."""
    topic_id, first, last = damage
    cursor = seek(transaction, topic_id, first)
    if cursor is None or bytes(cursor.key()) > block_key(topic_id, last):
        return
    directory.mkdir(exist_ok=True)
    path = directory / f"{topic_id}-{first}-{last}.block"
    path.write_bytes(cursor.value())
    cursor.close()
