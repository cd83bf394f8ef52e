"""The epoll set of one socket: every connection in its data phase, and whatever wakes its callers."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EINTR, errno
from libc.string cimport memset
from posix.unistd cimport close

from omq._core.kernel cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLIN,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
)
from omq._core.queues.peer cimport Peer, Turn

import logging
import os
import threading

log = logging.getLogger("omq")

cdef enum:
    ATTEMPTS = 5             # to tell a session something while signal handlers raise


@cython.final
cdef class Poller:
    """An epoll set; whoever watches it drives the connections in it.

    Args:
        turn: Runs what events wake; None leaves that to others.
    """

    def __cinit__(self, *_):
        self.fd = NO_FD

    def __init__(self, Turn turn=None):
        if self.fd >= 0:
            raise RuntimeError("the epoll set is open")
        self._turn = turn
        self._main = threading.main_thread().ident
        self._peers = []
        self._tickets = []
        self._free = []
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def close(self):
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    cdef unsigned long long join(self, Peer peer, int fd, unsigned int interest) except 0:
        """Puts a descriptor into the set; gives the ticket that its events carry.

        Between the kernel's word and its handling a peer may have ended: a ticket is checked, a pointer could not be.
        """
        cdef epoll_event event
        cdef Py_ssize_t slot
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._peers)
            self._peers.append(None)
            self._tickets.append(None)
        self._serial += 1
        event.events = interest
        event.data.u64 = (<unsigned long long>(self._serial or 1) << 32) | <unsigned long long>slot
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            self._free.append(slot)
            raise OSError(errno, os.strerror(errno))
        self._peers[slot] = peer
        self._tickets[slot] = event.data.u64
        self._count += 1
        self._only = peer if self._count == 1 else None
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

    def dispatch(self):
        """Handles what is ready, without waiting, then runs whoever that woke."""
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
        cdef epoll_event events[EVENTS]
        cdef int n
        cdef Peer only = self._only
        if self.fd < 0:
            return 0
        if only is not None and only.only_reads():
            # A single connection that only reads: the event can be nothing else, and a read finds out what it is.
            self._tell(only, EPOLLIN)
            return self.let_out()
        n = epoll_wait(self.fd, events, EVENTS, 0)
        if n < 0:
            if errno == EINTR:
                return 0
            raise OSError(errno, os.strerror(errno))
        return self.handle(events, n)

    cdef int handle(self, epoll_event *events, int count) except -1:
        cdef int i
        cdef Py_ssize_t slot
        cdef Peer peer
        for i in range(count):
            if events[i].data.u64 == NO_TICKET:
                continue
            slot = events[i].data.u64 & 0xffffffff
            if self._tickets[slot] != events[i].data.u64:
                continue
            self._tell(<Peer>self._peers[slot], events[i].events)
        return self.let_out()

    cdef int call_back(self, object function, object argument) except -1:
        """Tells a session something. A signal handler that raises meanwhile does not keep it from hearing it."""
        cdef int left
        if self._turn is not None or PyThread_get_thread_ident() != self._main:
            # In an event loop, and beside the main thread, nobody interrupts.
            function(argument)
            return 0
        for left in range(ATTEMPTS, -1, -1):
            try:
                function(argument)
                return 0
            except BaseException as error:
                # A session raises nothing of its own: Python runs signal handlers wherever Python code runs in the main
                # thread. It hears it again, which does no harm, and the exception goes to the call that is under way.
                if left == 0:
                    self._interruption = None
                    raise
                self._interruption = error
        return 0

    cdef int let_out(self) except -1:
        """Raises what a signal handler has raised."""
        if self._interruption is not None:
            error = self._interruption
            self._interruption = None
            raise error
        return 0

    cdef int _tell(self, Peer peer, unsigned int events) except -1:
        try:
            peer.on_events(events)
        except Exception as error:
            # One connection's failure is not the others'.
            log.exception("a connection failed")
            try:
                peer.fail(error)
            except Exception:
                log.exception("the end of a connection failed")
        return 0
