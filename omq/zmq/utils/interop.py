"""Addresses as numbers."""

from __future__ import annotations

from typing import Any


def cast_int_addr(n: Any) -> int:
    """Returns the number of a context or socket, for `shadow`.

    Raises:
        ValueError: It is not a number.
    """
    if isinstance(n, int):
        return n
    raise ValueError(f"Cannot cast {n!r} to int")
