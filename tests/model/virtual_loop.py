"""An event loop whose time passes only while nothing can run: the same program takes the same steps each time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any


class NothingHappens(Exception):
    """Raised when every task waits for something that no task will do."""


class _VirtualSelector(selectors.BaseSelector):
    """Passes the time for which it would wait. The only file that is registered is the loop's own."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.advance(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop.

    Attributes:
        observe: Called before each step.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self.observe: Callable[[], None] = lambda: None
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        return self._virtual

    def advance(self, seconds: float | None) -> None:
        """Passes time."""
        self.observe()
        if seconds is None:
            raise NothingHappens
        self._virtual += seconds
