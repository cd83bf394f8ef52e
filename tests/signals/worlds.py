"""Every call that is interrupted, by name."""

from __future__ import annotations

from tests.signals import living, receiving, sending, subscribing
from tests.signals.world import World

PARTS = (sending, receiving, subscribing, living)


def worlds() -> dict[str, type[World]]:
    """All of them, by name."""
    found: dict[str, type[World]] = {}
    todo: list[type[World]] = [World]
    while todo:
        for kind in todo.pop(0).__subclasses__():
            found[kind.__name__] = kind
            todo.append(kind)
    return found
