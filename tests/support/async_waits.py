"""Waits in an event loop: a condition instead of a pause. The timeout of the test bounds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any]) -> None:
    """Polls until a condition holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.0005)


async def stable(value: Callable[[], Any], quiet: float = 0.3) -> Any:
    """Waits until a value has not changed for *quiet* seconds, and returns it."""
    clock = asyncio.get_running_loop().time
    seen, since = value(), clock()
    while clock() - since < quiet:
        await asyncio.sleep(0.002)
        if (found := value()) != seen:
            seen, since = found, clock()
    return seen
