# One connection's descriptor, served by the thread that holds its socket's epoll set.

from omq._core.link.receiver cimport Receiver
from omq._core.link.command_backlog cimport Outlook, CommandBacklog


cdef class Connection(Receiver):
    cdef bint _blocked               # the kernel has not taken the whole batch
    cdef bint _broken                # a write failed: reading continues until the end
    cdef bint _recalled              # unsent messages were taken back: it gets no more messages
    cdef Py_ssize_t _greeted         # how many of its first messages are the library's own
    cdef long long _bytes_at_write   # `bytes_in` at the last write that followed a pause
    cdef bint _retired               # out of routing: the session is notified when everything has left
    cdef CommandBacklog _backlog     # commands that wait until the peer's kernel has nothing for us, or None
    cdef long long _calm             # `bytes_in` when a PING was last postponed
    cdef int _short_burst            # messages of a burst that may still be written through
    cdef bint _dense                 # the last batch left because it was full
    cdef long long _delivered        # when, during closing, the peer's kernel was first seen to have everything
    cdef int _decide(self, bint first) except? -1
    cdef bint _count_handed(self) except -1
    cdef int _part_with_threads(self) except -1
    cdef int _avoid_reset(self) except -1
    cdef int _write_closing_frame(self) except -1
    cdef bint _is_speaking(self) noexcept
    cdef int _look_empty(self) except -1
    cdef int _push(self) noexcept
    cdef int _after(self, int status) except -1
    cdef Py_ssize_t _unread(self) noexcept
    cdef Outlook _outlook(self) noexcept
    cdef int _hold_back(self, bytes frames) except -1
    cdef int _release(self) except -1
    cdef int _ask_session(self) except -1
    cdef int _write(self, bytes frames) except -1
