# The descriptor that `fileno` gives, the same for both twins.

from omq._core.queues.peer cimport Inlet


cdef class Truth:
    cdef readonly int fd             # eventfd; owned
    cdef bint _told                  # it is readable
    cdef int show(self, bint readable) except -1
    cdef int follow(self, Inlet inlet) except -1
