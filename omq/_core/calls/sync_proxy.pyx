"""The blocking proxy: the calling thread leads all its sockets at once, and sleeps in their epoll sets.

While it runs, no other thread serves these sockets. Any event for it wakes it through the eventfd of the socket
concerned, as for any other leader (`omq._core.calls.leader`).
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EINTR, errno
from posix.time cimport nanosleep, timespec

from omq._core.calls.leader cimport IDLE_GAP_NS, MAX_ADAPTIVE_SPIN_NS, SHORT_WAIT_NS, YIELD_NS, BlockedCall, LeaderCore
from omq._core.calls.proxy cimport PROXY_DRAINS, PROXY_ENDS, ProxyCore
from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns
from omq._core.queues.peer cimport TURN_MESSAGES

import os

from omq.errors import ClosedError, StateError, TransportError

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)  # the length of a deque, without a call

cdef enum:
    CHECK_INTERVAL_NS = 100000    # work between two checks of the descriptors
    FLUSH_DELAY_NS = 500000       # a batch waits this long for more while messages come without a pause
    MAX_WORK_NS = 5500000         # work after which other threads get the GIL and the locks: see `_yield_gil`
    DRAIN_CHECK_INTERVAL_MS = 20  # between two checks of the clock after TERMINATE


@cython.final
cdef class SyncProxy(ProxyCore):
    """The blocking proxy.

    Args:
        frontend: The core of the one socket.
        backend: The core of the other socket.
        capture: The core of a socket that gets a copy of each message, or `None`.
        control: The core of a socket that receives commands, or `None`.
    """

    def __init__(self, frontend, backend, capture, control):
        cdef LeaderCore core
        ProxyCore.__init__(self, frontend, backend, capture, control)
        self._cores = list(dict.fromkeys([one for one in (frontend, backend, capture, control) if one is not None]))
        self._blocked_calls = []
        self._count = len(self._cores)
        self._pollers = [(<LeaderCore?>one).poller for one in self._sources]
        self._nap = FIRST_SLEEP_NS
        for core in self._cores:
            self._spin = max(self._spin, core._spin)
            self._adaptive |= core._adaptive

    def run(self) -> None:
        """Forwards until a command ends the proxy.

        Raises:
            ClosedError: One of its sockets was closed.
            StateError: Another proxy serves one of its sockets; or the process has forked.
        """
        cdef bint more
        try:
            self._lead()
            while True:
                more = self._work()
                if self._state == PROXY_ENDS:
                    return
                if now_ns() - self._yielded_at > MAX_WORK_NS or self._is_wanted():
                    self._yield_gil()
                elif not more:
                    self._sleep()
        finally:
            if self._blocked_calls:
                self._end()

    # ------------------------------------------------------------------ locks

    cdef int _hold(self) except -1:
        """Takes the locks of all sockets; waits for one only while it holds no lock."""
        cdef Py_ssize_t i
        cdef LeaderCore core
        i = 0
        while i < self._count:
            core = <LeaderCore>self._cores[i]
            if i == 0:
                core.lock.acquire()
            elif not core.lock.try_acquire():
                self._release(i)
                core.lock.acquire()
                core.lock.release()
                i = 0
                continue
            i += 1
        return 0

    cdef int _release(self, Py_ssize_t count) except -1:
        """Releases the first *count* locks, also where that raises: it runs the calls that other threads deferred."""
        if count > 0:
            try:
                (<LeaderCore>self._cores[count - 1]).lock.release()
            finally:
                self._release(count - 1)
        return 0

    # ------------------------------------------------------------------ leading

    cdef int _lead(self) except -1:
        """Begins to serve the sockets, in place of all other threads."""
        cdef LeaderCore core
        cdef BlockedCall blocked_call
        for core in self._cores:
            core._enter()
            core._leave()
        self._hold()
        try:
            self._refuse_closed()
            for core in self._cores:
                if core.readable.proxied:
                    raise StateError(f"another proxy serves the {core._name()} socket")
            for core in self._cores:
                blocked_call = BlockedCall(core)
                blocked_call.woken = True
                self._blocked_calls.append(blocked_call)
                core.readable.proxied = True
                core.readable.enter(blocked_call)
                core.writable.enter(blocked_call)
                core._dismiss()
            self._take_lead()
            self._begin_turns(True)
        finally:
            self._release(self._count)
        return 0

    cdef int _take_lead(self) except -1:
        """Takes the leader's places; a thread that has one wakes up and finds that it follows."""
        cdef LeaderCore core
        cdef BlockedCall blocked_call
        for blocked_call in self._blocked_calls:
            core = blocked_call._core
            if core._leader is not None and core._leader is not blocked_call:
                core._leader.leading = False
                core._signal()
            core._leader = blocked_call
            blocked_call.leading = True
            blocked_call.in_handlers = False
        return 0

    cdef int _leave_lead(self) except -1:
        """Gives up the leader's places."""
        cdef BlockedCall blocked_call
        for blocked_call in self._blocked_calls:
            blocked_call.in_handlers = True
            if blocked_call.leading:
                blocked_call.leading = False
                blocked_call._core._leader = None
            blocked_call._core._wake_another()
        return 0

    cdef int _end(self) except -1:
        """Stops serving the sockets; gathered messages leave."""
        cdef LeaderCore core
        cdef BlockedCall blocked_call
        self._hold()
        try:
            self._begin_turns(False)
            for blocked_call in self._blocked_calls:
                core = blocked_call._core
                core.readable.proxied = False
                core.writable.leave(blocked_call)
                core.writable.pass_on()
                core._stand_up(core.readable, blocked_call)
            self._blocked_calls.clear()
            self._flush()
        finally:
            self._release(self._count)
        return 0

    cdef int _refuse_closed(self) except -1:
        cdef LeaderCore core
        for core in self._cores:
            if core._fork_guard.stale:
                core._refuse()
            if core.closed:
                raise ClosedError(f"the {core._name()} socket was closed while a proxy served it")
        return 0

    # ------------------------------------------------------------------ working

    cdef bint _work(self) except -1:
        """Forwards until there is nothing to do, or other threads are due; returns whether there is more to do."""
        cdef long long now = now_ns()
        cdef long long flushed = now
        cdef bint dense = False
        self._hold()
        try:
            while True:
                self._refuse_closed()
                if self._round():
                    if self._state == PROXY_ENDS:
                        break
                    dense = True
                elif not dense or not self._check_descriptors():
                    break
                else:
                    dense = False  # if there is nothing to forward now, either, sleeping is a check as well
                now = now_ns()
                if now - self._looked > CHECK_INTERVAL_NS:
                    self._check_descriptors()
                if now - flushed > FLUSH_DELAY_NS:
                    flushed = now
                    self._flush()
                if now - self._yielded_at > MAX_WORK_NS or self._is_wanted():
                    self._flush()
                    return True
            self._flush()
            return False
        finally:
            self._release(self._count)

    cdef int _check_descriptors(self) except -1:
        """Checks the descriptors, without waiting; returns whether there was an event."""
        cdef Py_ssize_t i
        cdef LeaderCore core
        cdef bint found = False
        self._looked = now_ns()
        for i in range(self._count):
            self._fds[i].fd = (<LeaderCore>self._cores[i]).poller.fd
            self._fds[i].events = POLLIN
        if poll(self._fds, self._count, 0) <= 0:
            return False
        for i in range(self._count):
            if self._fds[i].revents:
                found = True
                core = <LeaderCore>self._cores[i]
                core._drain()
                core.looks += 1
                core.poller.look()
        return found

    cdef bint _is_wanted(self) noexcept:
        """Returns whether another thread waits for a lock, or has deferred a call to its holder."""
        cdef Py_ssize_t i
        cdef LeaderCore core
        for i in range(self._count):
            core = <LeaderCore>self._cores[i]
            if core.lock._waiters or Py_SIZE(core.lock.deferred):
                return True
        return False

    cdef int _yield_gil(self) except -1:
        """Gives other threads the GIL and the locks.

        A thread that waits for the GIL requests it after 5 ms, and the next release hands it over. Shorter releases, as
        in sleeps that end at once, only restart that count.
        """
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = YIELD_NS
        with nogil:
            nanosleep(&moment, NULL)
        self._yielded_at = now_ns()
        return self._heed_signals()

    cdef int _heed_signals(self) except -1:
        """Runs signal handlers, which may call the sockets and may take long: others lead meanwhile."""
        if PyThread_get_thread_ident() != (<LeaderCore>self._cores[0])._fork_guard._main:
            return 0
        self._signals_at = now_ns()
        self._hold()
        try:
            self._leave_lead()
        finally:
            self._release(self._count)
        PyErr_CheckSignals()
        self._hold()
        try:
            self._take_lead()
        finally:
            self._release(self._count)
        return 0

    # ------------------------------------------------------------------ sleeping

    cdef int _sleep(self) except -1:
        """Sleeps until something may have happened to a socket."""
        cdef long long begun, now
        cdef long long spin = self._spin
        cdef int found = 0
        cdef int failure = 0
        cdef int wait = -1
        if self._adaptive:
            spin = MAX_ADAPTIVE_SPIN_NS if self._was_short else 0
        if PyThread_get_thread_ident() == (<LeaderCore>self._cores[0])._fork_guard._main:
            # A signal between the last check and the system call interrupts nothing.
            wait = <int>(self._nap // 1000000)
            self._nap = min(2 * self._nap, <long long>MAX_SLEEP_NS)
        if self._state == PROXY_DRAINS:
            wait = DRAIN_CHECK_INTERVAL_MS
        try:
            if self._arm():
                begun = now_ns()
                with nogil:
                    now = begun
                    while now - begun < spin and found == 0:
                        found = poll(self._fds, self._count, 0)
                        now = now_ns()
                    if found == 0:
                        found = poll(self._fds, self._count, wait)
                    if found < 0:
                        failure = errno
                now = now_ns()
                self._was_short = now - begun < SHORT_WAIT_NS
                if now - begun > IDLE_GAP_NS:
                    self._yielded_at = now
        finally:
            self._wake_up()
        if failure and failure != EINTR:
            raise TransportError(failure, os.strerror(failure))
        if found > 0:
            self._nap = FIRST_SLEEP_NS
        # A signal interrupts nothing while messages are forwarded, nor while this thread waits for the GIL.
        if found <= 0 or now_ns() - self._signals_at > MAX_WORK_NS:
            self._heed_signals()
        return 0

    cdef bint _arm(self) except -1:
        """Makes any event from now on end the sleep; False: an event has come already."""
        cdef Py_ssize_t i
        cdef BlockedCall blocked_call
        self._hold()
        try:
            for blocked_call in self._blocked_calls:
                blocked_call.woken = False
            self._refuse_closed()
            if self._round():
                return False
            self._flush()
            for i in range(self._count):
                blocked_call = <BlockedCall>self._blocked_calls[i]
                blocked_call._core._inside += 1
                self._fds[i].fd = blocked_call._core.poller.fd
                self._fds[i].events = POLLIN
                self._fds[i].revents = 0
            self._armed = True
            return True
        finally:
            self._release(self._count)

    cdef int _wake_up(self) except -1:
        """Ends a sleep: handles the events that have come."""
        cdef Py_ssize_t i
        cdef LeaderCore core
        cdef BlockedCall blocked_call
        cdef bint armed = self._armed
        self._armed = False
        self._hold()
        try:
            self._looked = now_ns()
            for i in range(self._count):
                blocked_call = <BlockedCall>self._blocked_calls[i]
                core = blocked_call._core
                blocked_call.woken = True
                if not armed:
                    continue
                core._inside -= 1
                if core._ending:
                    if core._inside == 0:
                        core._end()
                elif self._fds[i].revents:
                    core._drain()
                    core.looks += 1
                    core.poller.serve()
        finally:
            self._release(self._count)
        return 0
