"""The awaitables of waiting calls, and the order in which woken tasks run."""

cimport cython

from omq._core.queues.wait_queue cimport Turn

from asyncio.exceptions import CancelledError
from contextvars import copy_context

cdef extern from "Python.h":
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1


@cython.final
cdef class AsyncTurn(Turn):
    """Runs the tasks that a round of events has woken at the end of that round, not through the loop's queue."""

    def __cinit__(self):
        self._woken = []

    cdef int finish(self) except -1:
        cdef Waiter waiter = self._first
        if waiter is None:
            return 0
        self._first = None
        if not self._woken:
            return waiter._run()
        woken = [waiter, *self._woken]
        self._woken = []
        for i in range(len(woken)):
            waiter = <Waiter>woken[i]
            try:
                waiter._run()
            except BaseException:
                for waiter in woken[i + 1:]:
                    waiter._loop.call_soon(waiter._callback, waiter, context=waiter._context)
                raise
        return 0


@cython.final
@cython.freelist(16)
cdef class Waiter:
    """The awaitable of a call in a wait queue: as much of a Future as a task needs.

    A Waiter carries no message. If it is woken while events are being handled, the task runs after all of them;
    otherwise the loop runs it.
    """

    def add_done_callback(self, callback: Any, *, context: Any = None) -> None:
        self._callback = callback
        self._context = copy_context() if context is None else context
        if self.done:
            self._loop.call_soon(callback, self, context=self._context)

    def result(self) -> None:
        if self._cancelled is not None:
            raise CancelledError(*self._cancelled)

    def cancel(self, msg: Any = None) -> bool:
        if self.done:
            return False
        self.done = True
        self._cancelled = () if msg is None else (msg,)
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
        return True

    cdef int wake(self) except -1:
        if not self.done:
            self.done = True
            if self._callback is not None:
                if not self._turn.open:
                    self._soon()
                elif self._turn._first is None:
                    self._turn._first = self
                else:
                    self._turn._woken.append(self)
        return 0

    cdef int _soon(self) except -1:
        """Schedules the task's callback. If the loop is closed, the task never resumes."""
        try:
            self._loop.call_soon(self._callback, self, context=self._context)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
        return 0

    cdef int _run(self) except -1:
        PyContext_Enter(self._context)
        try:
            self._callback(self)
        finally:
            PyContext_Exit(self._context)
        return 0
