"""Batches of replicas, and their form on the wire. Sans I/O."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from omq._core import blocks
from omq.pzq.cluster.keys import KeyRange, Keys, split
from omq.pzq.errors import Malformed
from omq.pzq.wire import key_of, shown, unpack


class ReplicaBatch(NamedTuple):
    """Replicas of one owner's messages.

    Attributes:
        keys: The keys of the messages.
        records: Their records, in the form of the store.
        named: True if each record has its key as its first part, as in a topic of replicas. Else the keys are
            consecutive, and only the first one is sent.
    """

    keys: Keys
    records: bytes | memoryview
    named: bool

    def head(self) -> bytes:
        """Returns the frame before the records: the first key and the number of keys; empty if records name them."""
        return b"" if self.named else b"%b %d" % (self.keys[0].encode(), len(self.keys))

    def some(self, keys: set[str]) -> ReplicaBatch:
        """Returns the messages that have one of these keys."""
        picked = [(number, key) for number, key in enumerate(self.keys) if key in keys]
        records = b"".join(blocks.slice(self.records, number, number + 1) for number, _ in picked)
        return ReplicaBatch(Keys.of([key for _, key in picked]), records, self.named)


#: The head of records without keys: the key of the first one, and their number.
_HEAD: Final = re.compile(rb"([^ ]{1,80}) ([0-9]{1,9})")


def consecutive_keys(template: bytes, when: int, first: int, count: int) -> Keys:
    """Returns the keys of messages with consecutive ids that were stored together (see `key_of`)."""
    if first >> 48 != first + count - 1 >> 48:
        return Keys.of([key_of(template, when, number).decode() for number in range(first, first + count)])
    head, begin = key_of(template, when, first)[:-12].decode(), first & 0xFFFFFFFFFFFF
    return Keys([KeyRange(head, begin, begin + count)])


def read_replicas(frames: list[bytes]) -> list[ReplicaBatch]:
    """Reads replicas: `peer | id | REPLICAS:owner | empty | (head | records)+`.

    Raises:
        Malformed: The frames have another form.
    """
    _, _, _, *rest = frames
    if len(rest) < 3 or rest[0] or not len(rest) % 2:
        raise Malformed("these are not valid replicas: an id, REPLICAS:, an empty frame, and heads with records")
    return [read_batch(rest[at], rest[at + 1]) for at in range(1, len(rest), 2)]


def read_batch(head: bytes, records: bytes) -> ReplicaBatch:
    """Reads one batch: its head and its records.

    Raises:
        Malformed: The head is not valid, or a record is damaged.
    """
    try:
        if not head:
            whole = blocks.header(1, blocks.check(records), 0, len(records))
            messages: list[blocks.Message] = blocks.decode(whole, records, "")
            keys = [unpack(message.body, message.key)[0].decode("ascii") for message in messages]
            if any(message.key is None or len(message.key) < 8 for message in messages):
                raise Malformed("a record has no key before its body")
            if len(set(keys)) < len(keys):
                raise Malformed("a key is listed twice")
            return ReplicaBatch(Keys.of(keys), records, True)
        found = _HEAD.fullmatch(head)
        if found is None:
            raise Malformed(f"{shown(head)} is not a valid first key with a count")
        first, begin = split(found[1].decode())
        count = int(found[2])
        if not count >= 1 or begin + count > 1 << 48:
            raise Malformed(f"{shown(head)} has a number that is out of range")
        named = blocks.named(records, first.encode(), begin, count)
        return ReplicaBatch(Keys([KeyRange(first, begin, begin + count)]), named, True)
    except (ValueError, struct.error) as wrong:
        raise Malformed(f"the replicas are damaged: {wrong}") from None
