# The blocking twin's calls: the calling thread does the work.

from omq._core.calls.leader cimport LeaderCore


cdef class SyncCore(LeaderCore):
    cdef object _send_timeout        # seconds; None for ever
    cdef object _recv_timeout
    cdef bint _behind                # the last `_take` left messages in the receive queue: the peer is faster
    cdef int _publish(self) except -1
    cdef int _conceal(self) except -1
    cdef int _borrow(self, int *borrowed) except -1
    cdef int _give_back(self) except -1
    cdef int _refuse_unless_receiving(self) except -1
    cdef object _take(self, int how, object argument, object timeout, Py_buffer *into=*)
    cdef object _try(self, int how, object argument, Py_buffer *into)
    cdef int _put(self, object data, bint several, object route, object timeout) except -1
