"""Conversions between text and bytes; deprecated."""

from __future__ import annotations

import builtins
import warnings
from typing import TypeAlias

bytes: TypeAlias = builtins.bytes
unicode = str
basestring = (str,)


def _warn() -> None:
    warnings.warn("zmq.utils.strtypes is deprecated in pyzmq 23.", DeprecationWarning, stacklevel=3)


def cast_bytes(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> bytes:
    """Returns text as bytes, and bytes as they are.

    Raises:
        TypeError: It is neither.
    """
    _warn()
    if isinstance(s, str):
        return s.encode(encoding, errors)
    if isinstance(s, bytes):
        return s
    raise TypeError(f"Expected unicode or bytes, got {s!r}")


def cast_unicode(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> str:
    """Returns bytes as text, and text as it is.

    Raises:
        TypeError: It is neither.
    """
    _warn()
    if isinstance(s, bytes):
        return s.decode(encoding, errors)
    if isinstance(s, str):
        return s
    raise TypeError(f"Expected unicode or bytes, got {s!r}")


b = asbytes = cast_bytes
u = cast_unicode

__all__ = ["asbytes", "bytes", "unicode", "basestring", "b", "u", "cast_bytes", "cast_unicode"]
