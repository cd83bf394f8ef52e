"""A descriptor that users select on: level-triggered, readable exactly while a message waits, say."""

cimport cython
from libc.errno cimport errno
from posix.unistd cimport close, read, write

from omq._core.kernel cimport EFD_CLOEXEC, EFD_NONBLOCK, NO_FD, eventfd
from omq._core.queues.peer cimport RecvQueue

import os


@cython.final
cdef class ReadableEvent:
    def __cinit__(self, *_):
        self.fd = NO_FD

    def __init__(self):
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def fileno(self):
        """The descriptor."""
        return self.fd

    def reset(self):
        """Makes it unreadable, whoever made it readable."""
        self.show(False)

    cdef int show(self, bint readable) except -1:
        """Makes it readable, or no longer."""
        cdef unsigned long long count = 1
        if readable != self._told:
            self._told = readable
            if readable:
                write(self.fd, &count, sizeof(count))
            else:
                read(self.fd, &count, sizeof(count))
        return 0

    cdef int follow(self, RecvQueue recv_queue) except -1:
        """Says what holds of a queue now."""
        return self.show(recv_queue.has_message())
