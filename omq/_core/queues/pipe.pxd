# Two sockets of one process, connected without a kernel in between.

from omq._core.bell cimport Bell
from omq._core.lock cimport SocketLock
from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport Peer


cdef bytes asking(const char *prefix, Py_ssize_t size, bint subscribe)


cdef class Pipe(ObjectPeer):
    cdef Pipe partner                # the other end; None once it is gone
    cdef object _ring                # deque of messages for this end: bytes, or tuples of bytes
    cdef Py_ssize_t _capacity        # messages that fit before the partner waits; 0 no bound
    cdef Bell _bell                  # of the loop that this end belongs to
    cdef SocketLock _lock            # guards this end where threads share it; None: only its own thread uses it
    cdef bint _reopening             # a call of `reopen` is on its way through _bell
    cdef bint _posted                # a call of `arrive` is on its way through _bell
    cdef bint _conflate              # only the newest message is kept
    cdef object _newest              # of a conflating end: the partner's last message; None: it is in _ring
    cdef long long _sent             # bytes sent
    cdef int _arrive(self) except -1
    cdef int _pass_messages(self) except -1
    cdef int _make_room(self) except -1
    cdef int _reopen(self) except -1
    cdef int _reach(self, bint arrival) except -1
    cdef bint _elsewhere(self) noexcept
