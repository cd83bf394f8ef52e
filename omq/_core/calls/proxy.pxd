# The work of a proxy on its sockets, for both twins; it never waits.

from omq._core.link.poller cimport Poller
from omq._core.queues.passage cimport Passage
from omq._core.queues.peer cimport RecvQueue, SendQueue

cdef enum ProxyState:
    PROXY_RUNS
    PROXY_PAUSED
    PROXY_DRAINS  # TERMINATE has come: messages that were received before are still forwarded
    PROXY_ENDS


cdef class ProxyCore:
    cdef Passage _forth              # from the frontend to the backend; None: messages cannot go that way
    cdef Passage _back               # from the backend to the frontend; None: likewise, or the two are one socket
    cdef RecvQueue _control          # the source of commands; None: no control socket
    cdef SendQueue _answers          # the target of answers to commands; None: no answers
    cdef bint _owes                  # each command must be answered (REP)
    cdef list _send_queues           # the send queues of all its sockets
    cdef list _sources               # frontend, backend, or both: those whose messages are forwarded
    cdef list _pollers               # their epoll sets
    cdef ProxyState _state
    cdef list _goals                 # TERMINATE: connections still to be read, each with the number of bytes to reach
    cdef long long _reached          # bytes that those have received in all
    cdef Py_ssize_t _left            # messages still to be forwarded once all that is read
    cdef long long _until            # when that ends although peers continue, in nanoseconds on the monotonic clock
    cdef long long _room_deadline    # when it ends if nothing moves, likewise
    cdef bint _round(self) except -1
    cdef Py_ssize_t _move(self) except -1
    cdef int _begin_turns(self, bint led) except -1
    cdef int _flush(self) except -1
    cdef int _obey(self) except -1
    cdef int _answer(self, list parts) except -1
    cdef int _begin_end(self) except -1
    cdef bint _drain(self) except -1
    cdef int _look_at_goals(self) except -1
    cdef long long _received(self) except -1
    cdef Py_ssize_t _waiting(self) except -1
