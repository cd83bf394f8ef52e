"""Times from which topics are read: as arguments of calls, and in the texts of errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from omq.broker.errors import Overrun

#: The end of the years that `datetime` has.
MAX_TIME_S: Final = 253_402_300_800
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StartTime(NamedTuple):
    """The time of the first message to read.

    Attributes:
        microseconds: The time since 1970, as in the headers of blocks.
    """

    microseconds: int


def start_time(name: str, value: datetime | float) -> StartTime:
    """Returns the time in an argument.

    Args:
        name: The name of the argument.
        value: A time with a time zone, or seconds since 1970.

    Raises:
        ValueError: The time has no time zone, or is before 1970 or after the year 9999.
        TypeError: The value is neither a time nor a number.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{name}={value!r}: must have a time zone, such as tzinfo=UTC")
        if value < _EPOCH:
            raise ValueError(f"{name}={value!r}: must be 1970 or later")
        return StartTime((value - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name}={value!r:.80}: must be a datetime with a time zone, or seconds since 1970, not"
            f" {type(value).__name__}"
        )
    if not 0 <= value <= MAX_TIME_S:
        raise ValueError(f"{name}={value!r:.80}: must be 0 to {MAX_TIME_S} seconds since 1970")
    return StartTime(round(value * 1e6))


def describe_time(microseconds: int) -> str:
    """Returns a time since 1970 as text: ISO 8601 in UTC."""
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{microseconds / 1e6:g} seconds since 1970"


def overrun_since(topic: str, start: StartTime, first: int, timestamp: int) -> Overrun:
    """Returns the error for a time after which messages may have been dropped.

    Args:
        topic: The name of the topic.
        start: The time.
        first: The oldest id that is kept.
        timestamp: The timestamp of that message; 0 if it is unknown, or nothing is kept.
    """
    stored = f", stored at {describe_time(timestamp)}" if timestamp else ""
    return Overrun(
        f"messages of topic {topic!r} since {describe_time(start.microseconds)} may no longer be kept; the oldest is"
        f" {first}{stored}",
        first,
    )
