"""Callbacks that do not keep alive whose method they call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


def weak_callback(method: Callable[_P, None]) -> Callable[_P, None]:
    """Returns a function that calls a bound method as long as its object lives, and then does nothing."""
    found = weakref.WeakMethod(method)

    def call(*arguments: _P.args, **named: _P.kwargs) -> None:
        method = found()
        if method is not None:
            method(*arguments, **named)

    return call
