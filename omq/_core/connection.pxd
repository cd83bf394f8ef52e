# One connection's descriptor, driven by whoever holds its socket's epoll set.

from omq._core.batch cimport Batch, Part
from omq._core.buffer cimport Stream
from omq._core.peer cimport Peer, Turn

cdef enum:
    SPARSE_NS = 20000        # nanoseconds since the last write after which a message is written at once


cdef class Poller:
    cdef readonly int fd             # the epoll descriptor; -1 once closed
    cdef int _count                  # connections in the set
    cdef Connection _only            # the one that is in it, if no other has been; else None
    cdef Turn _turn                  # None: whoever is woken is not run from here
    cdef int _serve(self) except -1
    cdef int watch(self, Connection connection, bint fresh) except -1
    cdef int forget(self, Connection connection) except -1


cdef class Connection(Peer):
    cdef readonly int fd             # the descriptor, owned; -1 once closed
    cdef Poller _poller
    cdef Batch _batch
    cdef Stream _stream
    cdef Py_ssize_t _hwm             # messages waiting at which reading stops; 0 never
    cdef unsigned int _interest      # EPOLL* that the poller watches for
    cdef bint _watched               # it is in the epoll set
    cdef bint _blocked               # the kernel has not taken the whole batch
    cdef bint _broken                # a write failed: reading goes on until the end
    cdef bint _stopped               # reading is paused because recv_hwm messages wait
    cdef bint _ending                # the kernel has reported the end: read up to it
    cdef bint _parting               # our side of the stream is ended
    cdef bint _dense                 # the last batch left because it was full
    cdef readonly bint lost          # the connection is over; what has arrived can be taken
    cdef long long _last_write       # nanoseconds on the monotonic clock
    cdef int on_events(self, unsigned int events) except -1
    cdef int _read(self) except -1
    cdef int _digest(self) except -1
    cdef int _hand_over(self) except -1
    cdef int _lose(self, object reason) except -1
    cdef int _want(self, unsigned int interest) except -1
    cdef int _written(self, int status) except -1
    cdef int _accepted(self, bint first) except -1
