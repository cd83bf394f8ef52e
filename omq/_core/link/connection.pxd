# One connection's descriptor, driven by whoever holds its socket's epoll set.

from omq._core.link.receiver cimport Receiver


cdef class Connection(Receiver):
    cdef bint _blocked               # the kernel has not taken the whole batch
    cdef bint _broken                # a write failed: reading goes on until the end
    cdef bint _parting               # our side of the stream is ended
    cdef int _short_burst            # messages of a burst that may still be written through
    cdef bint _dense                 # the last batch left because it was full
    cdef int _decide(self, bint first) except? -1
    cdef int _push(self) noexcept
    cdef int _after(self, int status) except -1
