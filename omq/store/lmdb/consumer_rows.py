"""Rows about consumers: the ack sets of round-robin topics and consumer groups, and the cursors of subscriptions."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from omq.store.ack_set import PAGE_IDS, AckSet
from omq.store.errors import DamagedError, UnknownGroup
from omq.store.lmdb.layout import (
    LAST_GENERATION,
    NUMBER,
    THREE,
    TOPIC,
    TWO,
    acks_key,
    group_of,
    rows,
    topic_key,
    with_checksum,
    without_checksum,
)

_PAGE_BYTES: Final = PAGE_IDS // 8
_CURSOR: Final = b"o"


def load_ack_set(transaction: Any, topic_id: int, group: str = "") -> AckSet:
    """Returns the ack set of a topic, or of a group of it.

    Raises:
        DamagedError: One of its rows is damaged.
        UnknownGroup: There is no such group.
    """
    acks = AckSet()
    if group:
        check_group(transaction, topic_id, group)
    try:
        key = acks_key(b"w", topic_id, group)
        row = transaction.get(key)
        if group:
            acks.floor, acks.last_delivered, acks.generation = THREE.unpack(without_checksum(key, row))
        elif row is not None:
            acks.floor, acks.last_delivered = TWO.unpack(without_checksum(key, row))
        for key, value in rows(transaction, prefix := acks_key(b"s", topic_id, group)):
            acks.pages[_number(key, prefix)] = int.from_bytes(without_checksum(key, value), "little")
        for key, value in rows(transaction, prefix := acks_key(b"r", topic_id, group)):
            (acks.deliveries[_number(key, prefix)],) = NUMBER.unpack(without_checksum(key, value))
    except struct.error as error:
        raise DamagedError(f"the acks of topic {topic_id} are damaged: {error}", topic_id) from None
    return acks


def check_group(transaction: Any, topic_id: int, group: str) -> None:
    """Raises `UnknownGroup` if a topic has no such group."""
    if transaction.get(acks_key(b"w", topic_id, group)) is None:
        raise UnknownGroup(topic_id, group)


def _number(key: bytes, prefix: bytes) -> int:
    """Returns the number after the prefix of a key."""
    number: int = NUMBER.unpack(key[len(prefix) :])[0]
    return number


def put_ack_set(transaction: Any, topic_id: int, group: str, acks: AckSet) -> None:
    """Writes the changes of an ack set."""
    key = acks_key(b"w", topic_id, group)
    numbers = acks.floor, acks.last_delivered
    value = THREE.pack(*numbers, acks.generation) if group else TWO.pack(*numbers)
    transaction.put(key, with_checksum(key, value))
    prefix = acks_key(b"s", topic_id, group)
    for number in acks.dirty:
        key = prefix + NUMBER.pack(number)
        page = acks.pages.get(number)
        if page is None:
            transaction.delete(key)
        else:
            transaction.put(key, with_checksum(key, page.to_bytes(_PAGE_BYTES, "little")))
    prefix = acks_key(b"r", topic_id, group)
    for id in acks.counted:
        key = prefix + NUMBER.pack(id)
        deliveries = acks.deliveries.get(id)
        if deliveries is None:
            transaction.delete(key)
        else:
            transaction.put(key, with_checksum(key, NUMBER.pack(deliveries)))
    acks.dirty.clear()
    acks.counted.clear()


def delete_ack_set(transaction: Any, topic_id: int, group: str) -> bool:
    """Deletes the ack set of a group; returns whether there was one."""
    for kind in (b"s", b"r"):
        for key in [key for key, _ in rows(transaction, acks_key(kind, topic_id, group))]:
            transaction.delete(key)
    found: bool = transaction.delete(acks_key(b"w", topic_id, group))
    return found


def next_generation(transaction: Any, now: int) -> int:
    """Returns the generation of a group that is created or moved, and records it.

    Args:
        transaction: The current transaction.
        now: The time in microseconds. It makes the number new even if a power failure has undone the last record.
    """
    last, row = 0, transaction.get(LAST_GENERATION)
    if row is not None:
        with suppress(DamagedError, struct.error):  # then the time alone makes it new
            (last,) = NUMBER.unpack(without_checksum(LAST_GENERATION, row))
    generation = max(last + 1, now)
    transaction.put(LAST_GENERATION, with_checksum(LAST_GENERATION, NUMBER.pack(generation)))
    return generation


def load_ack_floors(transaction: Any, topic_id: int) -> dict[str, int]:
    """Returns the ack floors of the groups of a topic by name; -1 for one whose row is damaged."""
    return {name: floor for _, name, floor in _ack_floors(transaction, topic_key(b"W", topic_id))}


def load_all_ack_floors(transaction: Any, topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the ack floors of the groups of each of these topics that has any, by topic id."""
    return _by_topic(_ack_floors(transaction, b"W"), topics)


def _ack_floors(transaction: Any, prefix: bytes) -> Iterator[tuple[int, str, int]]:
    """Yields topic id, name and ack floor of each group; a floor of -1 if the row is damaged."""
    for key, value in rows(transaction, prefix):
        try:
            floor, _, _ = THREE.unpack(without_checksum(key, value))
        except (DamagedError, struct.error):
            floor = -1
        yield TOPIC.unpack_from(key)[1], group_of(key), floor


def _by_topic(found_ids: Iterable[tuple[int, str, int]], topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the ids by topic id and name, of these topics: a deleted topic may have rows left."""
    found: dict[int, dict[str, int]] = {}
    for topic_id, name, id in found_ids:
        if topic_id in topics:
            found.setdefault(topic_id, {})[name] = id
    return found


def load_cursors(transaction: Any, topic_id: int) -> dict[str, int]:
    """Returns the cursors of a topic by name; -1 for one whose row is damaged."""
    return {name: position for _, name, position in _cursors(transaction, topic_key(_CURSOR, topic_id))}


def load_all_cursors(transaction: Any, topics: Container[int]) -> dict[int, dict[str, int]]:
    """Returns the cursors of each of these topics that has any, by topic id."""
    return _by_topic(_cursors(transaction, _CURSOR), topics)


def _cursors(transaction: Any, prefix: bytes) -> Iterator[tuple[int, str, int]]:
    """Yields topic id, name and position of each cursor; a position of -1 if the row is damaged."""
    for key, value in rows(transaction, prefix):
        try:
            (position,) = NUMBER.unpack(without_checksum(key, value))
        except (DamagedError, struct.error):
            position = -1
        _, topic_id = TOPIC.unpack_from(key)
        yield topic_id, key[TOPIC.size :].decode(errors="replace"), position
