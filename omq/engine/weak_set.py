"""A set of weak references that threads and signal handlers may use at any time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class WeakIdentitySet(Generic[_T]):
    """A set of objects by identity. (`weakref.WeakSet` fails if an object is added during an iteration.)"""

    def __init__(self) -> None:
        self._found: dict[weakref.ref[_T], None] = {}

    def add(self, one: _T) -> None:
        """Adds an object. Idempotent."""
        # The end of an object removes it, in C code alone.
        self._found[weakref.ref(one, self._found.pop)] = None

    def __iter__(self) -> Iterator[_T]:
        """Iterates over the objects that exist now."""
        return iter([one for found in tuple(self._found) if (one := found()) is not None])

    def __len__(self) -> int:
        return len(self._found)
