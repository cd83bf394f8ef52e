"""Reads the arguments of requests; what does not fit raises `SyntaxFault`, or `TooLarge`."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from omq.broker import protocol as p
from omq.broker.errors import SyntaxFault, TooLarge


def optional(message: list[bytes], at: int) -> bytes:
    """A part that may have been left out."""
    return message[at] if len(message) > at else b""


def json_value(part: bytes, what: str, limit: int = p.MAX_ARGUMENT) -> Any:
    """Any JSON value, which is bounded: the loop waits while it is read."""
    if len(part) > limit:
        raise TooLarge(f"{what} has {limit} bytes at most, not {len(part)}")
    return p.read_value(part, what)


def json_object(message: list[bytes], at: int, what: str = "the argument") -> dict[str, Any]:
    """A JSON object that may have been left out."""
    part = optional(message, at)
    value = json_value(part, what) if part else {}
    if not isinstance(value, dict):
        raise SyntaxFault(f"{what} is a JSON object, not {type(value).__name__}")
    return value


def producer(message: list[bytes], at: int) -> tuple[bytes, int]:
    """Producer and sequence, which come together or not at all."""
    name, sequence = optional(message, at), optional(message, at + 1)
    if not name and not sequence:
        return b"", 0
    if not 1 <= len(name) <= p.MAX_PRODUCER:
        raise SyntaxFault(f"a producer has 1 to {p.MAX_PRODUCER} bytes, not {len(name)}")
    number = p.number(sequence, "the sequence")
    if not number:
        raise SyntaxFault("sequences begin with 1")
    return name, number


def named(part: bytes, what: str) -> bytes:
    """The name of a stage or a commit."""
    if not 1 <= len(part) <= p.MAX_NAME:
        raise SyntaxFault(f"{what} has a name of 1 to {p.MAX_NAME} bytes, not {len(part)}")
    return part


def stage_names(part: bytes) -> list[bytes]:
    """The names of the stages of a commit."""
    names = json_value(part, "the list of stages", p.MAX_STAGES_SIZE)
    if not isinstance(names, list) or not names:
        raise SyntaxFault("the stages are a list of their names in base64")
    if len(names) > p.MAX_STAGES:
        raise TooLarge(f"a commit has {p.MAX_STAGES} stages at most, not {len(names)}")
    return [_stage_name(name) for name in names]


def _stage_name(name: Any) -> bytes:
    """The name of a stage, from JSON."""
    if not isinstance(name, str):
        raise SyntaxFault(f"a stage's name in base64 is a string, not {type(name).__name__}")
    try:
        return named(base64.b64decode(name, validate=True), "a stage")
    except (binascii.Error, ValueError) as error:
        raise SyntaxFault(f"{name[:80]!r} is not base64: {error}") from None


def whole(said: dict[str, Any], key: str, default: int) -> int:
    """A whole number, from JSON."""
    value = said.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SyntaxFault(f"{key} is a whole number, not {str(value)[:40]!r}")
    return value
