# One direction of a proxy: from the receive queue of one socket into the send queue of another.

from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.wire.send_buffer cimport Part


cdef class Passage:
    cdef RecvQueue source
    cdef SendQueue target
    cdef SendQueue capture           # gets a copy of each message, or None
    cdef bint _by_turns              # one of the two takes, or sends, one message at a time (REQ, REP)
    cdef bint _echoes                # both are one such socket: it sends only after it has taken
    cdef bint _plain                 # single messages are not inspected: they may pass in runs
    cdef Part *_parts                # the parts of the current message; owned
    cdef Py_ssize_t _room            # entries of _parts
    cdef list _large                 # bytes objects that hold parts of it
    cdef long long messages_in       # taken from the source
    cdef long long bytes_in          # bytes of their parts
    cdef long long messages_out      # accepted by the target
    cdef long long bytes_out
    cdef Py_ssize_t move(self) except -1
    cdef Py_ssize_t _move_run(self) except -1
    cdef Py_ssize_t _view(self) except -1
    cdef int _grow(self, Py_ssize_t count) except -1
    cdef bint _has_room(self) except -1
    cdef Py_ssize_t _pass(self, Py_ssize_t count) except -1
