# The epoll set of one socket.

from omq._core.bell cimport Bell
from omq._core.kernel cimport epoll_event
from omq._core.link.background cimport Background, WatchedSet
from omq._core.lock cimport load, store
from omq._core.queues.wait_queue cimport Turn
from omq._core.queues.peer cimport Peer

cdef enum:
    NO_TICKET = 0     # the ticket of descriptors that do not belong to peers
    FIRST_TICKET = 2  # the lowest ticket of a peer


cdef class Poller:
    cdef readonly int fd             # the epoll descriptor; -1 once closed
    cdef list _peers                 # by slot; None where it is free
    cdef list _tickets               # by slot: the number that its events carry
    cdef list _free                  # slots to use again
    cdef unsigned int _serial        # of the last ticket: differs between users of a reused slot
    cdef int _count                  # peers in the set
    cdef int _only_fd                # its descriptor
    cdef Peer _only                  # the only peer in the set, if no other has ever been in it; else None
    cdef Bell _bell                  # calls sessions in the I/O thread; None: they are called at once
    cdef Turn _turn                  # runs woken calls; None: they run elsewhere
    cdef WatchedSet _watched         # the set's entry in the background thread, or None
    cdef bint _shared                # the WatchedSet exists and owns the descriptor
    cdef bint _busy                  # events are being handled: no others are meanwhile
    cdef unsigned long long join(self, Peer peer, int fd, unsigned int interest) except 0
    cdef int leave(self, int fd, unsigned long long ticket) except -1
    cdef void _close(self) noexcept
    cdef WatchedSet watched_by(self, Background background)
    cdef int serve(self) except -1
    cdef int stand_in(self) except -1
    cdef int only_fd(self) noexcept
    cdef int look(self) except -1
    cdef int handle(self, epoll_event *events, int count) except -1
    cdef int call_back(self, object function, object argument) except -1
    cdef int log_error(self, object error) except -1
    cdef int _take_ahead(self, bint skims) except -1
    cdef int _handle(self, epoll_event *events, int count, bint skims) except -1
    cdef int _work(self, bint skims) except -1
    cdef int _notify(self, Peer peer, unsigned int events) except -1

    cdef inline bint is_empty(self) noexcept:
        """Returns whether no connection is in the set."""
        return self._count == 0

    cdef inline void _note_look(self) noexcept:
        """Counts a check of the set, which shows the background thread that the set is served."""
        if self._watched is not None:
            store(&self._watched._serves, self._watched._serves + 1)

    cdef inline bint _has_ahead(self) noexcept:
        return self._watched is not None and load(&self._watched._ahead)
