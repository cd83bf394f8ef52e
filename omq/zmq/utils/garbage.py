"""The memory that frames share with the program; pyzmq has a thread for that, and omq none."""

from __future__ import annotations

from typing import Any

from omq._core.wire.loan import loans


class GarbageCollector:
    """Shows which memory frames share.

    Args:
        context: Not used.

    Attributes:
        refs: The event of each such memory, or `None`, by its number.
    """

    refs: dict[int, Any] = loans

    def __init__(self, context: Any = None) -> None:
        pass


gc = GarbageCollector()
