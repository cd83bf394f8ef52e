"""Every call that is interrupted, by name."""

from __future__ import annotations

from tests.signals import lifecycle_calls, receive_calls, send_calls, subscribe_calls
from tests.signals.interrupted_call import InterruptedCall

PARTS = (send_calls, receive_calls, subscribe_calls, lifecycle_calls)


def cases() -> dict[str, type[InterruptedCall]]:
    """All of them, by name."""
    found: dict[str, type[InterruptedCall]] = {}
    todo: list[type[InterruptedCall]] = [InterruptedCall]
    while todo:
        for kind in todo.pop(0).__subclasses__():
            found[kind.__name__] = kind
            todo.append(kind)
    return found
