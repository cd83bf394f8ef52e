"""The headers of a dead letter, which record where it came from, why and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from omq._core import blocks
from omq.store.interface import MoveToDeadLetter

TOPIC_HEADER: Final = "omq-dead-topic"
ID_HEADER: Final = "omq-dead-id"
DELIVERIES_HEADER: Final = "omq-dead-deliveries"
REASON_HEADER: Final = "omq-dead-reason"
TIME_HEADER: Final = "omq-dead-time"
HEADERS: Final = frozenset({TOPIC_HEADER, ID_HEADER, DELIVERIES_HEADER, REASON_HEADER, TIME_HEADER})

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def dead_letter(record: bytes, topic: str, write: MoveToDeadLetter, now: int) -> bytes:
    """Returns the record of a dead letter: the message with the headers of the move.

    If the move has no reason, the message is unchanged.

    Args:
        record: The message.
        topic: The name of its topic.
        write: The move.
        now: The time, in microseconds since 1970.
    """
    if write.reason is None:
        return record
    headers = {
        TOPIC_HEADER: topic.encode(),
        ID_HEADER: b"%d" % write.id,
        DELIVERIES_HEADER: b"%d" % write.deliveries,
        REASON_HEADER: write.reason.encode(),
        TIME_HEADER: _timestamp(now).encode(),
    }
    try:
        return _with_headers(record, headers)
    except ValueError:
        return record  # it has almost as many headers as a record may have, and it must become a dead letter


def requeued(record: bytes) -> bytes:
    """Returns the message of a dead letter, without the headers of the move."""
    return _with_headers(record, {})


def _with_headers(record: bytes, headers: Mapping[str, bytes]) -> bytes:
    """Replaces the headers of dead letters in a valid record; its other headers stay before them, in their order.

    Raises:
        ValueError: The record would have more than 65,535 headers.
    """
    messages: list[blocks.Message] = blocks.decode(blocks.header(1, 1, 0, len(record)), record, "")
    (message,) = messages
    own = {name: value for name, value in message.headers.items() if name not in HEADERS}
    return blocks.encode_record(message.body, message.key, {**own, **headers})


def _timestamp(now: int) -> str:
    """Returns a time as RFC 3339 text in UTC, such as `2026-01-31T23:59:59.123456Z`."""
    return (_EPOCH + timedelta(microseconds=now)).isoformat(timespec="microseconds").replace("+00:00", "Z")
