"""The epoll set of one socket: every connection in its data phase, and the descriptors that wake its callers."""

cimport cython
from libc.errno cimport EINTR, errno
from libc.string cimport memset
from posix.unistd cimport close

from omq._core.bell cimport Bell
from omq._core.kernel cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLIN,
    MAX_EVENTS,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
)
from omq._core.link.background cimport Background, WatchedSet
from omq._core.lock cimport pause_gc, resume_gc
from omq._core.queues.wait_queue cimport Turn
from omq._core.queues.peer cimport Peer

import logging
import os

from omq.errors import TransportError

log = logging.getLogger("omq")


@cython.final
cdef class Poller:
    """An epoll set. The thread that watches it drives the connections in it.

    Args:
        turn: Runs the calls that events wake; `None`: they run elsewhere.

    Attributes:
        fd: The epoll descriptor, readable while an event waits; -1 once closed.
    """

    def __cinit__(self, *_):
        self.fd = NO_FD

    def __init__(self, Turn turn: Turn | None = None) -> None:
        if self.fd >= 0:
            raise RuntimeError("the epoll set is already open")
        self._turn = turn
        self._peers = []
        self._tickets = []
        self._free = []
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise TransportError(errno, os.strerror(errno))

    def __dealloc__(self):
        self._close()

    def close(self) -> None:
        self._close()

    cdef void _close(self) noexcept:
        if self._watched is not None:
            self._watched.close()
        elif self.fd >= 0 and not self._shared:
            close(self.fd)
        self.fd = NO_FD

    cdef WatchedSet watched_by(self, Background background):
        """Makes *background* serve the set while the owner is away; None: no thread."""
        if self._watched is None and self.fd >= 0:
            self._watched = background.begin(self.fd)
            self._shared = self._watched is not None
        return self._watched

    def set_bell(self, Bell bell not None) -> None:
        """Sets the bell of the sessions' loop: sessions are notified there of events of their connections."""
        self._bell = bell

    cdef unsigned long long join(self, Peer peer, int fd, unsigned int interest) except 0:
        """Adds a descriptor to the set; returns the ticket that its events carry.

        A peer may end between the kernel's event and its handling: a ticket can be checked, a pointer could not.
        """
        cdef epoll_event event
        cdef Py_ssize_t slot
        # Allocate first: if there is no memory, nothing has changed.
        if not self._free:
            slot = len(self._peers)
            self._tickets.append(None)
            self._peers.append(None)
            self._free.append(slot)
        slot = self._free[len(self._free) - 1]
        self._serial += 1
        event.events = interest
        event.data.u64 = (<unsigned long long>(self._serial or 1) << 32) | <unsigned long long>slot
        ticket = event.data.u64
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise TransportError(errno, os.strerror(errno))
        self._free.pop()
        self._peers[slot] = peer
        self._tickets[slot] = ticket
        self._count += 1
        self._only = peer if self._count == 1 else None
        self._only_fd = fd
        return event.data.u64

    cdef int leave(self, int fd, unsigned long long ticket) except -1:
        cdef epoll_event event
        cdef Py_ssize_t slot = ticket & 0xffffffff
        memset(&event, 0, sizeof(event))
        self._count -= 1
        self._only = None
        self._peers[slot] = None
        self._tickets[slot] = None
        self._free.append(slot)
        if self.fd >= 0:
            epoll_ctl(self.fd, EPOLL_CTL_DEL, fd, &event)
        return 0

    def dispatch(self) -> None:
        """Handles ready events, without waiting, then runs the calls that those woke."""
        if self._turn is None:
            self.serve()
            return
        self._turn.open = True
        try:
            self.serve()
        finally:
            self._turn.open = False
            self._turn.finish()

    cdef int serve(self) except -1:
        """Handles ready events, without waiting."""
        self._note_look()
        return self._work(False)

    @property
    def relieved(self) -> bool:
        """Returns whether the background thread reads and writes here, as the owner is away."""
        return self._watched is not None and load(&self._watched._away) != 0

    cdef int stand_in(self) except -1:
        """Works like `serve`, in a thread that acts for the owner, and waits for the GIL while the owner runs."""
        return self._work(False)

    cdef int only_fd(self) noexcept:
        """Returns the descriptor if a single connection waits only for bytes, else -1."""
        return self._only_fd if self._only is not None and self._only.only_reads() else NO_FD

    cdef int look(self) except -1:
        """Works like `serve`, while messages wait: leaves out a peer that has enough unread messages."""
        self._note_look()
        return self._work(True)

    cdef int _work(self, bint skims) except -1:
        cdef epoll_event events[MAX_EVENTS]
        cdef int n
        cdef Peer only = self._only
        if self.fd < 0 or self._busy:
            return 0
        if self._has_ahead():
            self._take_ahead(skims)
        if only is not None and only.only_reads():
            # A single connection that only reads: the event can mean nothing else, and a read handles it.
            if not (skims and only.sated()):
                self._busy = True
                pause_gc()
                try:
                    self._notify(only, EPOLLIN)
                finally:
                    resume_gc()
                    self._busy = False
            return 0
        n = epoll_wait(self.fd, events, MAX_EVENTS, 0)
        if n < 0:
            if errno == EINTR:
                return 0
            raise TransportError(errno, os.strerror(errno))
        return self._handle(events, n, skims)

    cdef int handle(self, epoll_event *events, int count) except -1:
        """Handles events."""
        self._note_look()
        if self._has_ahead():
            self._take_ahead(False)
        return self._handle(events, count, False)

    cdef int _take_ahead(self, bint skims) except -1:
        """Takes bytes that the background thread has read ahead, before newer ones; counts those that it has sent."""
        cdef Peer peer
        cdef bint again = False
        cdef Py_ssize_t slot
        if self._busy:
            return 0
        self._busy = True
        pause_gc()
        try:
            self._watched.clear()
            for slot in range(len(self._peers)):
                peer = <Peer>self._peers[slot]
                if peer is None:
                    continue
                peer.note_handed()
                if not peer.has_ahead():
                    continue
                if skims and peer.sated():
                    again = True
                else:
                    self._notify(peer, EPOLLIN)
            if again and self._watched is not None:
                self._watched.signal()
        finally:
            resume_gc()
            self._busy = False
        return 0

    cdef int _handle(self, epoll_event *events, int count, bint skims) except -1:
        cdef int i
        cdef Py_ssize_t slot
        cdef Peer peer
        if self._busy:
            return 0
        self._busy = True
        pause_gc()
        try:
            for i in range(count):
                if events[i].data.u64 < FIRST_TICKET:
                    continue
                slot = events[i].data.u64 & 0xffffffff
                if self._tickets[slot] != events[i].data.u64:
                    continue
                peer = <Peer>self._peers[slot]
                if skims and events[i].events == EPOLLIN and peer.sated():
                    continue
                self._notify(peer, events[i].events)
        finally:
            resume_gc()
            self._busy = False
        return 0

    cdef int call_back(self, object function, object argument) except -1:
        """Calls a session's method in the session's own thread; the caller may be another thread and hold a lock."""
        if self._bell is not None:
            return self._bell.request(function, argument)
        function(argument)
        return 0

    cdef int log_error(self, object error) except -1:
        """Logs an unexpected error."""
        return self.call_back(log_error, error)

    cdef int _notify(self, Peer peer, unsigned int events) except -1:
        try:
            peer.on_events(events)
        except Exception as error:
            # A failure of one connection must not stop the others.
            self.log_error(error)
            try:
                peer.fail(error)
            except Exception as failure:
                self.log_error(failure)
        return 0


def log_error(error):
    log.error("a connection failed", exc_info=error)
