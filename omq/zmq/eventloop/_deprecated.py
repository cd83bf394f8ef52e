"""Names of programs for tornado before its version 5."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop, PeriodicCallback

ZMQIOLoop = IOLoop


class DelayedCallback(PeriodicCallback):  # type: ignore[misc]
    """Calls a function once; deprecated: `IOLoop.call_later` will do.

    Args:
        callback: The function.
        callback_time: Milliseconds from `start` to the call.
        io_loop: Ignored; the current loop is used.
    """

    def __init__(self, callback: Callable[[], Any], callback_time: float, io_loop: Any = None) -> None:
        warnings.warn("DelayedCallback is deprecated: use IOLoop.call_later", DeprecationWarning, stacklevel=2)
        super().__init__(self._call_once, max(callback_time, 1e-3))
        self._function = callback

    def _call_once(self) -> Any:
        self.stop()
        return self._function()


def install() -> None:
    """Does nothing; deprecated."""


__all__ = ["DelayedCallback", "IOLoop", "ZMQIOLoop", "install"]
