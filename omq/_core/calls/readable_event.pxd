# The descriptor that `fileno` returns, the same for both twins.

from omq._core.queues.peer cimport RecvQueue


cdef class ReadableEvent:
    cdef readonly int fd             # eventfd; owned
    cdef bint _is_shown              # the descriptor is readable
    cdef void close(self) noexcept
    cdef int show(self, bint readable) except -1
    cdef int follow(self, RecvQueue recv_queue) except -1
