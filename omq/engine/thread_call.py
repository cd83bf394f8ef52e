"""Calls that one thread makes for another one, which waits: on the I/O thread, or on a new thread.

A signal handler may interrupt the waiting thread at any bytecode. So there is no lock here: what must not be
interrupted is one atomic step (`omq._core.atomic`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

from omq._core.atomic import Latch, Slot
from omq.errors import ContextTerminated
from omq.unpatched import _thread


class CallThread(Protocol):
    """A thread that makes calls for other threads.

    Attributes:
        loop: Its event loop.
    """

    loop: asyncio.AbstractEventLoop

    def forget(self, call: ThreadCall) -> None:
        """Removes a call that is done."""


class ThreadCall:
    """A call that another thread makes for the waiting one.

    A coroutine that it returns is awaited there. (A `concurrent.futures.Future` would not do: a thread that waits for
    one holds its lock at some bytecodes, and the I/O thread could not set the result while a signal handler runs
    there.)
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.done = Latch()
        self._function = function
        self._arguments = arguments
        self._fate: Slot[str] = Slot()  # "made" or "given up", whichever comes first
        self._result: Any = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None
        self._begun = Latch()  # the call was made; its coroutine may still run

    def run(self) -> None:
        """Makes the call, in a thread that no signal handler interrupts."""
        if self._make():
            self.done.set()
            self._begun.set()

    def run_in(self, io: CallThread) -> None:
        """Makes the call on the I/O thread, and awaits its coroutine there."""
        if not self._make():
            return
        if asyncio.iscoroutine(self._result):
            self._task = io.loop.create_task(self._result)
            self._result = None
            self._task.add_done_callback(lambda task: self._awaited(task, io))
        else:
            self.done.set()
            io.forget(self)
        self._begun.set()

    def _make(self) -> bool:
        if self.done.is_set or self._fate.put("made", None) != "made":
            return False
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # of any kind: the caller gets it
            self._error = error
        return True

    def _awaited(self, task: asyncio.Task[Any], io: CallThread) -> None:
        # Drop the last reference here: an exception of a signal handler would be lost in the code that ends a task.
        self._task = None
        if not task.cancelled():
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
                self.done.set()
        self.fail(self._error)
        io.forget(self)

    def fail(self, error: BaseException | None = None) -> None:
        """Fails the call, if it is not done: with *error*, or because its thread ends."""
        if not self.done.is_set:
            self._error = error or context_terminated()
            self._begun.set()
            self.done.set()

    def give_up(self, io: CallThread | None = None) -> None:
        """Cancels the call of an interrupted caller: afterwards the call was made, or never will be."""
        if self._fate.put("given up", None) == "given up":
            self.done.set()
            if io is not None:
                io.forget(self)
            return
        self._begun.wait()
        if io is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is everything
                io.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def result(self) -> Any:
        """Returns the result, or raises the exception, once the call is done."""
        error = self._error
        if error is None:
            return self._result
        if isinstance(error, ContextTerminated):
            error = context_terminated()  # made in another thread: its text may not fit this caller
        try:
            raise error
        finally:
            # The traceback refers to this frame, which refers to the error.
            self._error = error = None


def context_terminated() -> ContextTerminated:
    """Returns the error of a call that the thread can no longer make."""
    return ContextTerminated("the context has been terminated")


def run_in_new_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new thread and waits: no signal handler that raises can interrupt it.

    If no thread can be started, it calls the function in this one.
    """
    if sys.is_finalizing():
        return function(*arguments)  # a new thread would never run
    call = ThreadCall(function, arguments)
    try:
        try:
            _thread.start_new_thread(call.run, ())
        except RuntimeError:  # the system gives no thread, or the interpreter ends
            return function(*arguments)
        call.done.wait()
    except BaseException:
        call.give_up()
        raise
    return call.result()
