"""The wait for many sockets at once: the calling thread serves the epoll sets of all, through one that contains them."""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from posix.unistd cimport close

from omq._core.calls.attempt cimport READY_IN, READY_OUT
from omq._core.calls.leader cimport FOR_EVER, BlockedCall, LeaderCore
from omq._core.calls.readable_event cimport ReadableEvent
from omq._core.zmq.calls cimport Handle
from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns
from omq._core.kernel cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLLIN,
    MAX_EVENTS,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
)

import os

from omq.errors import ClosedError, TransportError

cdef enum:
    POLLIN = 1
    POLLOUT = 2


cdef class Entry:
    """One socket of a group."""

    cdef object socket
    cdef Handle handle
    cdef LeaderCore core
    cdef int wanted                  # as omq numbers events
    cdef int fd                      # the socket's epoll set
    cdef BlockedCall call            # leads while the group sleeps
    cdef bint inside                 # the sleep counts as a system call on the socket's epoll set


cdef class PollGroup:
    """Sockets with the events to wait for. Not for several threads at once.

    Args:
        sockets: Of each socket: what `poll` returns for it, its handle, and the events as libzmq numbers them.
    """

    def __cinit__(self, *_):
        self._fd = NO_FD

    def __init__(self, sockets: list[tuple[Any, Handle, int]]) -> None:
        cdef epoll_event event
        self._entries = []
        self._by_fd = {}
        self._fd = epoll_create1(EPOLL_CLOEXEC)
        if self._fd < 0:
            raise TransportError(errno, os.strerror(errno))
        self._event = ReadableEvent()
        event.events = EPOLLIN
        event.data.u64 = self._event.fd
        if epoll_ctl(self._fd, EPOLL_CTL_ADD, self._event.fd, &event) < 0:
            raise TransportError(errno, os.strerror(errno))
        for socket, handle, events in sockets:
            self._add(socket, handle, events)

    def __dealloc__(self):
        if self._fd >= 0:
            close(self._fd)

    cdef int _add(self, object socket, object handle, int events) except -1:
        cdef Entry entry = Entry.__new__(Entry)
        cdef epoll_event event
        entry.socket = socket
        entry.handle = handle
        entry.core = (<Handle>handle)._core
        if events & POLLIN and entry.core.recv_queue is not None:
            entry.wanted |= READY_IN
        if events & POLLOUT and entry.core.send_queue is not None:
            entry.wanted |= READY_OUT
        entry.fd = entry.core.poller.fd
        entry.call = BlockedCall(entry.core)
        entry.core.readable.show(self._event)
        entry.core.writable.show(self._event)
        self._entries.append(entry)
        if entry.fd in self._by_fd:
            return 0
        self._by_fd[entry.fd] = entry
        event.events = EPOLLIN
        event.data.u64 = entry.fd
        if epoll_ctl(self._fd, EPOLL_CTL_ADD, entry.fd, &event) < 0:
            raise TransportError(errno, os.strerror(errno))
        return 0

    def close(self) -> None:
        """Stops the sockets' notifications."""
        cdef Entry entry
        for entry in self._entries:
            entry.core.readable.hide(self._event)
            entry.core.writable.hide(self._event)
        self._entries = []
        if self._fd >= 0:
            close(self._fd)
            self._fd = NO_FD

    cdef list _ready(self):
        """Returns the sockets that are ready, each with its events, as libzmq numbers them."""
        cdef Entry entry
        cdef int ready
        cdef list found = []
        for entry in self._entries:
            if entry.handle.closed or entry.core.closed:
                raise ClosedError("a socket is closed")
            ready = 0
            entry.core._enter()
            try:
                if entry.core.send_queue is not None:
                    entry.core.send_queue.flush_pending()
                if entry.wanted & READY_IN and (entry.handle._rest is not None or entry.core.recv_queue.has_message()):
                    ready |= POLLIN
                if entry.wanted & READY_OUT and (entry.handle.begun is not None or entry.core.send_queue.can_put()):
                    ready |= POLLOUT
            finally:
                entry.core._leave()
            if ready:
                found.append((entry.socket, ready))
        return found

    cdef int _lead(self) except -1:
        """Takes the leader's place of each socket that has no leader: no other thread reads for it during the sleep."""
        cdef Entry entry
        cdef LeaderCore core
        for entry in self._entries:
            if entry.inside:
                continue
            core = entry.core
            core._enter()
            try:
                core._inside += 1
                entry.inside = True
                if core._leader is None:
                    core._leader = entry.call
                    entry.call.leading = True
                    entry.call.woken = False
                    core._dismiss()
            finally:
                core._leave()
        return 0

    cdef int _leave_lead(self) except -1:
        """Gives up the leader's places."""
        cdef Entry entry
        cdef LeaderCore core
        for entry in self._entries:
            if not entry.inside:
                continue
            entry.inside = False
            core = entry.core
            if core._fork_guard.stale:
                continue
            core.lock.enter()
            try:
                core._inside -= 1
                if core._leader is entry.call:
                    core._leader = None
                    core._wake_another()
                    core._leave_awake()
                entry.call.leading = False
                if core._ending and core._inside == 0:
                    core._end()
            finally:
                core._leave()
        return 0

    def fileno(self) -> int:
        """Returns a descriptor for event loops, readable while `poll` has something to do."""
        return self._fd

    def lead(self) -> None:
        """Begins a sleep of an event loop on the descriptor: `poll` must follow each of its events, until `leave`."""
        self._lead()

    def leave(self) -> None:
        """Ends what `lead` began."""
        self._leave_lead()

    cdef int _serve(self, int timeout_ms) except -1:
        """Handles what the kernel has for the sockets; waits for it if *timeout_ms* is not 0."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int count, i
        cdef Entry entry
        cdef LeaderCore core
        with nogil:
            count = epoll_wait(self._fd, events, MAX_EVENTS, timeout_ms)
        if count < 0:
            if errno != EINTR:
                raise TransportError(errno, os.strerror(errno))
            count = 0
        for i in range(count):
            if <int>events[i].data.u64 == self._event.fd:
                continue
            entry = <Entry?>self._by_fd[<int>events[i].data.u64]
            core = entry.core
            core._enter()
            try:
                if core._leader is None or core._leader is entry.call:
                    core._drain()
                core.looks += 1
                core._dismiss()
                core.poller.serve()
            finally:
                core._leave()
        PyErr_CheckSignals()
        return count

    def poll(self, timeout: int) -> list[tuple[Any, int]]:
        """Waits until a socket is ready.

        Args:
            timeout: Milliseconds; negative waits for ever.

        Returns:
            The sockets that are ready, each with its events, in order; empty after the timeout.

        Raises:
            ClosedError: A socket is closed.
        """
        cdef long long deadline = FOR_EVER if timeout < 0 else now_ns() + <long long>timeout * 1000000
        cdef long long left
        cdef long long nap = FIRST_SLEEP_NS
        self._event.show(False)
        self._serve(0)
        while True:
            found = self._ready()
            if found:
                return found
            left = deadline - now_ns()
            if left <= 0:
                return found
            try:
                self._lead()
                # In naps, because a signal before the system call interrupts nothing.
                self._serve(<int>((min(left, nap) + 999999) // 1000000))
            finally:
                self._leave_lead()
            nap = min(2 * nap, <long long>MAX_SLEEP_NS)
            self._event.show(False)
