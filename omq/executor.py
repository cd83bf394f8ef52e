"""Calls in other threads for an event loop, and coroutines that run without a loop."""

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
    """Runs a coroutine that both twins share, and returns its result.

    The blocking twin passes objects whose calls block instead of suspending, so the coroutine runs to its end at once.

    Args:
        call: Makes the coroutine. It is made here, because a signal handler that raises between making and running it
            would leave a coroutine that was never awaited, which Python warns about.
    """
    try:
        call().send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call of a blocking twin was suspended")


def in_thread(function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Makes a call in another thread, like `loop.run_in_executor`, whose pool consists of greenlets after a patch.

    Args:
        function: The function to call.
        *arguments: Its arguments.

    Returns:
        A future of the running loop.
    """
    loop = asyncio.get_running_loop()
    if not is_patched():
        return loop.run_in_executor(None, function, *arguments)
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the result
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=work, name="omq-call", daemon=True).start()
    return done


async def in_yielding_thread(function: Callable[..., T], *arguments: object) -> T:
    """Makes a call in another thread that yields the GIL every half millisecond, so that the loop keeps running.

    Args:
        function: Python code: a call of C code keeps the GIL for as long as it runs. Iterating over the work with
            `resting` helps.
        *arguments: Its arguments.

    Returns:
        The result of the call.
    """
    shorten()
    try:
        return await in_thread(function, *arguments)
    finally:
        restore()


def resting(items: Iterable[T]) -> Iterator[T]:
    """Yields items, and sleeps a millisecond after each half millisecond of work with them.

    A thread that yields the GIL only on request delays a message by half a millisecond in each thread that the message
    passes. A thread that sleeps delays it once.
    """
    begun = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - begun > _TIME_SLICE_S:
            time.sleep(_PAUSE_S)
            begun = time.perf_counter()
