"""Calls of an asynchronous socket that never have to wait, made without a task."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def at_once(call: Coroutine[Any, Any, _T]) -> _T:
    """Makes the call to its end, here.

    A second step is needed where the socket would have the loop take a turn first: who calls this does so by himself.

    Raises:
        ClosedError: The socket is closed.
    """
    try:
        while True:
            call.send(None)
    except StopIteration as end:
        found: _T = end.value
        return found
