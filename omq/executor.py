"""Calls that an event loop leaves to another thread, because they take long; and coroutines that need no loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

from omq._core.switch_interval import restore, shorten
from omq.unpatched import is_patched, threading

T = TypeVar("T")

_TIME_SLICE_S: Final = 0.0005
_PAUSE_S: Final = 0.001


def run_blocking(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Returns the result of a coroutine that a blocking twin shares with the asyncio twin.

    It is given objects whose calls block where those of asyncio suspend, so it runs to its end at once.

    Args:
        call: Makes the coroutine, here: a signal handler that raises on the way to this function would leave one that
            was never awaited, which Python warns of.
    """
    try:
        call().send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call of a blocking twin was suspended")


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
        function: What is called: Python code, for a call of C code keeps the GIL as long as it likes. Best it goes
            through its work with `resting`.
        *arguments: With what.

    Returns:
        Its result.
    """
    shorten()
    try:
        return await in_thread(function, *arguments)
    finally:
        restore()


def resting(items: Iterable[T]) -> Iterator[T]:
    """Yields items in a thread next to a loop, and sleeps a millisecond after each half of work with them.

    A thread that only hands the GIL on when it is asked takes half a millisecond of each thread that a message passes,
    each time that it passes one; one that sleeps takes it once.
    """
    begun = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - begun > _TIME_SLICE_S:
            time.sleep(_PAUSE_S)
            begun = time.perf_counter()
