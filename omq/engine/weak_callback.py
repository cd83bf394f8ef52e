"""Callbacks that do not keep the object of their method alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


def weak_callback(method: Callable[_P, None]) -> Callable[_P, None]:
    """Returns a function that calls a bound method while its object exists, and does nothing afterwards."""
    found = weakref.WeakMethod(method)

    def call(*arguments: _P.args, **named: _P.kwargs) -> None:
        method = found()
        if method is not None:
            method(*arguments, **named)

    return call
