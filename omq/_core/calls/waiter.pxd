# The awaitables of waiting calls, and the order in which woken tasks run.

from omq._core.queues.wait_queue cimport Turn


cdef class AsyncTurn(Turn):
    cdef Waiter _first               # the Waiter whose task runs first; None: no task was woken
    cdef list _woken                 # the further Waiters, in the order of their wake-ups


cdef class Waiter:
    cdef readonly object _loop       # asyncio tasks find their loop under this name, without a call
    cdef AsyncTurn _turn
    cdef object _callback            # the task's wake-up; None before the task has taken the waiter
    cdef object _context
    cdef object _cancelled           # None; else the arguments of the CancelledError
    cdef bint done
    cdef public bint _asyncio_future_blocking
    cdef int wake(self) except -1
    cdef int _soon(self) except -1
    cdef int _run(self) except -1
