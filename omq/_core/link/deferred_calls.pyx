"""Functions that the I/O thread calls a moment later. Requesting a call wakes no thread.

A thread that is woken on its waker's core takes that core away, if only to wait for the GIL. That must not happen
to a caller that has just got its message.
"""

cimport cython
from libc.errno cimport errno
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, timespec
from posix.unistd cimport close, read

from omq._core.kernel cimport NO_FD

import logging
import os

from omq.errors import TransportError

log = logging.getLogger("omq")

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int, int)
    int timerfd_settime(int, int, const itimerspec *, itimerspec *)
    int TFD_CLOEXEC, TFD_NONBLOCK

cdef enum:
    DELAY_NS = 10000000  # delay of a call


@cython.final
cdef class DeferredCalls:
    """Calls functions on the I/O thread 10 ms later.

    Attributes:
        fd: Readable when the time has come: then call `ring`. -1 before `open` and after `close`.
    """

    def __cinit__(self, *_):
        self.fd = NO_FD
        self._calls = []

    def __dealloc__(self):
        self.close()

    def open(self) -> None:
        """Opens the timer, unless it is open; before that `set` only stores.

        Raises:
            OSError: The system has no descriptor left.
        """
        if self.fd >= 0:
            return
        self.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.fd < 0:
            raise TransportError(errno, os.strerror(errno))

    def close(self) -> None:
        """Closes the descriptor; no further function is called. Idempotent."""
        self._calls = []
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    def set(self, function not None: Callable[[], None]) -> None:
        """Schedules one call of *function*; from any thread that holds the GIL."""
        cdef itimerspec when
        self._calls.append(function)
        if len(self._calls) == 1 and self.fd >= 0:
            memset(&when, 0, sizeof(when))
            when.it_value.tv_nsec = DELAY_NS
            timerfd_settime(self.fd, 0, &when, NULL)

    def cancel(self, function not None: Callable[[], None]) -> None:
        """Cancels a `set` of *function*, if it has not been called yet."""
        cdef itimerspec when
        if function in self._calls:
            self._calls.remove(function)
            if not self._calls and self.fd >= 0:
                memset(&when, 0, sizeof(when))
                timerfd_settime(self.fd, 0, &when, NULL)

    def ring(self) -> None:
        """Makes the calls; on the I/O thread."""
        cdef unsigned long long times
        read(self.fd, &times, sizeof(times))
        calls, self._calls = self._calls, []
        for function in calls:
            try:
                function()
            except Exception:
                log.exception("what an alarm was set for failed")
