"""Calls that an event loop leaves to another thread, because they take long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar, cast

from omq._core.switch_interval import restore, shorten
from omq.unpatched import is_patched, threading

T = TypeVar("T")


def in_thread(function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Makes a call in another thread, as `loop.run_in_executor` does: its pool is one of greenlets after a patch.

    Args:
        function: What is called.
        *arguments: With what.

    Returns:
        A Future of the loop that runs in this thread.
    """
    loop = asyncio.get_running_loop()
    if not is_patched():
        return loop.run_in_executor(None, function, *arguments)
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(cast("T", result))
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="omq-call", daemon=True).start()
    return done


async def in_yielding_thread(function: Callable[..., T], *arguments: object) -> T:
    """Makes a call in another thread that keeps the GIL for half a millisecond at a time: the loop has its turns.

    Args:
        function: What is called: Python code, for a call of C code keeps the GIL as long as it likes.
        *arguments: With what.

    Returns:
        Its result.
    """
    shorten()
    try:
        return await in_thread(function, *arguments)
    finally:
        restore()
