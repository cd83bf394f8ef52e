"""A descriptor that users select on: level-triggered, readable while a message waits, for example."""

cimport cython
from libc.errno cimport errno
from posix.unistd cimport close, read, write

from omq._core.kernel cimport EFD_CLOEXEC, EFD_NONBLOCK, NO_FD, eventfd
from omq._core.queues.peer cimport RecvQueue

import os

from omq.errors import TransportError


@cython.final
cdef class ReadableEvent:
    """A descriptor for any `select`: readable exactly while a condition holds, for example that a message waits.

    Raises:
        OSError: The process may open no more descriptors.

    Attributes:
        fd: The descriptor; it is closed with this object.
    """

    def __cinit__(self, *_):
        self.fd = NO_FD

    def __init__(self):
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.fd < 0:
            raise TransportError(errno, os.strerror(errno))

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        """Closes the descriptor: no thread selects on it any more."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self.fd

    def set(self) -> None:
        """Makes the descriptor readable."""
        self.show(True)

    def reset(self) -> None:
        """Makes the descriptor unreadable."""
        self.show(False)

    cdef int show(self, bint readable) except -1:
        """Makes the descriptor readable or unreadable."""
        cdef unsigned long long count = 1
        if readable != self._is_shown and self.fd >= 0:
            self._is_shown = readable
            if readable:
                write(self.fd, &count, sizeof(count))
            else:
                read(self.fd, &count, sizeof(count))
        return 0

    cdef int follow(self, RecvQueue recv_queue) except -1:
        """Makes the descriptor readable if a message waits in the queue, else unreadable."""
        return self.show(recv_queue.has_message())
