"""Interrupts on Windows; elsewhere Ctrl-C ends a waiting call without help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class allow_interrupt:  # noqa: N801
    """A `with` block that does nothing on POSIX, where omq runs.

    Args:
        action: Would be called at Ctrl-C on Windows.
    """

    def __init__(self, action: Callable[[], Any] | None = None) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: Any) -> None:
        pass
