"""Every call that is interrupted, by name."""

from __future__ import annotations

from tests.signals import lifecycle_calls, receive_calls, send_calls, subscribe_calls
from tests.signals.interrupted_call import World

PARTS = (send_calls, receive_calls, subscribe_calls, lifecycle_calls)


def worlds() -> dict[str, type[World]]:
    """All of them, by name."""
    found: dict[str, type[World]] = {}
    todo: list[type[World]] = [World]
    while todo:
        for kind in todo.pop(0).__subclasses__():
            found[kind.__name__] = kind
            todo.append(kind)
    return found
