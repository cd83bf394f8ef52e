"""Checks the arguments of a client's calls; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING

from omq.broker import protocol
from omq.broker.types import Record, Records

if TYPE_CHECKING:
    from typing_extensions import Buffer


def check_limit(limit: int | None) -> None:
    """Raises `ValueError` where the limit of `recv_many` is not `None`, or a whole number of 1 or more."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit={limit!r}: must be a whole number of 1 or more, or None")


def patience(timeout: float | None) -> float | None:
    """Seconds to wait; `None` for ever.

    Raises:
        ValueError: They are below 0, or no number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: must be seconds, 0 or more, or None for ever")
    return float(timeout)


def check_subscription(replay: str | int | None, name: str | None, credit: int) -> None:
    """Raises for arguments of `subscribe` that no broker takes.

    Raises:
        ValueError: What to replay is neither of the two words nor an id, or the credit is no number of bytes.
        TopicError: No subscription can have this name.
    """
    is_id = isinstance(replay, int) and not isinstance(replay, bool) and replay >= 0
    if not is_id and replay not in (None, "current", "beginning"):
        raise ValueError(f'replay={replay!r}: must be "current", "beginning", or an id, 0 or more')
    if name is not None:
        protocol.check_name(name, "a subscription's name")
    if credit < 1:
        raise ValueError(f"credit={credit!r}: must be bytes, at least 1")


def check_share(ack_timeout: float, credit: int) -> None:
    """Raises for arguments of `consume` that no broker takes.

    Raises:
        ValueError: The time is not more than 0, or for ever, or the credit is no number of messages.
    """
    if isinstance(ack_timeout, bool) or not isinstance(ack_timeout, int | float) or not 0 < ack_timeout < inf:
        raise ValueError(f"ack_timeout={ack_timeout!r}: must be seconds, more than 0, and not for ever")
    if credit < 1:
        raise ValueError(f"credit={credit!r}: must be messages, at least 1")


def check_headers(headers: Mapping[str, Buffer] | None) -> None:
    """Raises for headers that no message can have.

    Raises:
        TypeError: A name is no string.
    """
    for name in headers or ():
        if not isinstance(name, str):
            raise TypeError(f"headers: a name must be a string, not {name!r}")


def check_reading(start: int | None, stop: int | None, limit: int | None) -> None:
    """Raises for bounds of `read` that are no numbers.

    Raises:
        TypeError: One is neither a whole number nor `None`.
    """
    for name, value in (("start", start), ("stop", stop), ("limit", limit)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name}={value!r}: must be a whole number, or None")


def check_stage(name: str, what: str = "a stage's name") -> bytes:
    """Gives a name of a stage, or a commit, as the broker takes it.

    Raises:
        ValueError: It is empty, or has more than 255 bytes.
        TypeError: It is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} is a string, unlike {name!r:.80}")
    encoded = name.encode()
    if not 1 <= len(encoded) <= protocol.MAX_NAME:
        raise ValueError(f"{what} has 1 to {protocol.MAX_NAME} bytes, not {len(encoded)}: {name[:40]!r}")
    return encoded


def check_sequence(sequence: int) -> None:
    """Raises for a number that no stage has.

    Raises:
        ValueError: It is no whole number, or below 1.
    """
    if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        raise ValueError(f"sequence={sequence!r}: must be a whole number, 1 or more")


def check_stages(stages: Iterable[str]) -> Iterable[str]:
    """Gives back the names of several stages.

    Raises:
        TypeError: It is one.
    """
    if isinstance(stages, str):
        raise TypeError("the names of several stages are expected, not one")
    return stages


def check_in_flight(number: int | None) -> None:
    """Raises for a number of messages that cannot be on their way at once.

    Raises:
        ValueError: It is neither `None` nor a whole number of 1 or more.
    """
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise ValueError(f"in_flight={number!r}: must be a whole number, 1 or more, or None")


def check_bodies(bodies: object) -> None:
    """Raises where one body was given for several; iterating over it would give numbers."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Record | Records):
        raise TypeError(f"several bodies are expected, not one of {type(bodies).__name__}")
