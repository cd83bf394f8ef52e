# The wait for many sockets of pyzmq's Poller.

from omq._core.calls.readable_event cimport ReadableEvent


cdef class PollGroup:
    cdef int _fd                     # an epoll set with the epoll sets of all sockets, and `_event`
    cdef ReadableEvent _event        # readable after a notification of a socket
    cdef list _entries               # Entry, in order
    cdef dict _by_fd                 # Entry by the descriptor of its socket's epoll set
    cdef int _add(self, object socket, object handle, int events) except -1
    cdef int _lead(self) except -1
    cdef int _leave_lead(self) except -1
    cdef int _serve(self, int timeout_ms) except -1
    cdef list _ready(self)
