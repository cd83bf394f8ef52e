"""Keys of messages of one store, as its node makes them."""

from __future__ import annotations

from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.replica_batch import consecutive_keys
from omq.pzq.wire import key_format, stem_of

STORE = "0123456789abcdef0123456789abcdef"
STEM = stem_of(STORE, 7)


def keys(first: int, count: int, when: int = 100, topic: int = 7) -> Keys:
    return consecutive_keys(key_format(STORE, topic), when, first, count)
