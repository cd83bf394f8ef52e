"""Calls functions in an event loop at the request of any thread. Like a doorbell it only signals.

A request runs no Python code. So a thread may make it under a socket's lock, where a signal handler that wants the
same lock must never run: Python checks for signals only where it runs Python code.
"""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport errno
from posix.unistd cimport close, read, write

from omq._core.kernel cimport EFD_CLOEXEC, EFD_NONBLOCK, NO_FD, eventfd

from collections import deque
import logging
import os

from omq.errors import TransportError

log = logging.getLogger("omq")

cdef enum:
    MAX_CALLS_PER_TURN = 256  # functions that are called in one turn of the loop

NOTHING = object()  # the argument of a function without parameters


@cython.final
cdef class Bell:
    """Calls functions in an event loop at the request of any thread.

    The request runs no Python code.
    """
    # stub: thread: int

    def __cinit__(self, *_):
        self.fd = NO_FD
        self._orders = deque()

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def open(self) -> None:
        """Opens the descriptor that the loop watches. Idempotent.

        Raises:
            OSError: The system has no descriptor left.
        """
        self._over = False
        if self.fd < 0:
            self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            if self.fd < 0:
                raise TransportError(errno, os.strerror(errno))
            self._ring()  # a call may have been requested before

    def close(self) -> None:
        """Closes the descriptor; later requests are ignored. Idempotent."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD
        self._over = True
        self._orders.clear()

    def call(self, function: Callable[..., object], argument: Any = NOTHING) -> None:
        """Requests a call of a function, with one argument or none, from any thread."""
        self.request(function, argument)

    cdef int post(self, object function) except -1:
        """Requests a call of *function*, without an argument."""
        return self.request(function, NOTHING)

    cdef int request(self, object function, object argument) except -1:
        """Requests a call of *function* with *argument*."""
        if self._over:
            return 0
        # A deque makes no object that the garbage collector counts, so no collection begins here.
        self._orders.append(function)
        try:
            self._orders.append(argument)
        except MemoryError:
            self._orders.pop()
            raise
        if not self._rung:
            self._ring()
        return 0

    cdef int _ring(self) except -1:
        cdef unsigned long long one = 1
        if self.fd >= 0:
            self._rung = True
            write(self.fd, &one, sizeof(one))
        return 0

    def answer(self) -> None:
        """Makes the requested calls in order; the loop calls this when the descriptor is readable."""
        cdef unsigned long long times
        cdef Py_ssize_t left
        if self.fd >= 0:
            read(self.fd, &times, sizeof(times))
        self._rung = False
        self.thread = PyThread_get_thread_ident()
        # The rest, and later requests, wait for the next turn: the loop has other things to do.
        left = min(len(self._orders) // 2, <Py_ssize_t>MAX_CALLS_PER_TURN)
        try:
            while left > 0 and self._orders:
                left -= 1
                function = self._orders.popleft()
                argument = self._orders.popleft()
                try:
                    if argument is NOTHING:
                        function()
                    else:
                        function(argument)
                except Exception:
                    log.exception("a call that was requested in an event loop failed")
        finally:
            if self._orders and not self._rung:
                self._ring()
