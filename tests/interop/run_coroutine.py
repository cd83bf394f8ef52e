"""Runs a coroutine test to its end on a fresh uvloop, within a bound of time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

import uvloop

Given = ParamSpec("Given")


def on_uvloop(test: Callable[Given, Awaitable[None]]) -> Callable[Given, None]:
    """Makes a test function of a coroutine function; 20 seconds are the end of any wait in it."""

    @functools.wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await test(*args, **kwargs)

        uvloop.run(bounded())

    return run
