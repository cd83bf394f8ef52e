"""The bounded queue of one monitor: putting an event never waits, and an interrupted call loses no event.

There is no lock: the I/O thread puts events while a reader may be interrupted by a signal handler that waits for the
I/O thread. Instead each method is one step under the GIL, except where it makes an event that reports missed events.
"""

# stub: from omq.event import Event

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from posix.time cimport timespec

from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns, seconds
from omq._core.lock cimport sem_destroy, sem_init, sem_post, sem_t, sem_wait_until
from omq._core.calls.leader cimport FOR_EVER, ForkGuard

from collections import deque
import time

from omq.errors import ClosedError, ReceiveTimeout, StateError


cdef class EventQueue:
    """Keeps the newest events: a slow reader loses the oldest, and learns how many.

    Attributes:
        closed: Whether no further events come; events that wait can still be received.
    """

    def __cinit__(self, *_, **__):
        sem_init(&self._wake, 0, 0)
        self._events = deque()

    def __dealloc__(self):
        sem_destroy(&self._wake)

    def _assemble(
        self, Py_ssize_t limit, last: object, make_missed: Callable[[int, float], Event], ForkGuard fork_guard not None
    ) -> None:
        """Sets the limit of events, the last event's kind and the maker of `missed` events, before the first use."""
        self._limit = limit
        self._last = last
        self._make_missed = make_missed
        self._fork_guard = fork_guard

    def put(self, event not None: Event) -> None:
        """Adds an event, from any thread; never waits."""
        if self.closed:
            return
        if len(self._events) >= self._limit:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        if event.kind is self._last:
            self._end()
        elif self._waiting:
            sem_post(&self._wake)

    def take(self) -> Event | None:
        """Returns the next event, if one waits.

        Raises:
            ClosedError: No event waits, and no further one comes.
            StateError: The process has forked.
        """
        return self._take()

    cdef object _take(self):
        cdef Py_ssize_t count
        if self._fork_guard is None or self._fork_guard.stale:
            raise StateError("this monitor belongs to the parent process: make a new socket after fork()")
        while self._missed:
            count = self._missed
            # Runs Python code: a signal handler may raise in it, or take the `missed` event itself.
            event = self._make_missed(count, self._events[0].time if self._events else time.time())
            if self._missed == count:
                self._missed = 0
                return event
        if self._events:
            return self._events.popleft()
        if self.closed:
            raise ClosedError("the monitor is closed, or its socket is")
        return None

    def _forget(self) -> None:
        """Ends the queue and drops the events that wait."""
        self._missed = 0
        self._events.clear()
        self._end()

    def _end(self):
        cdef int _
        self.closed = True
        for _ in range(self._waiting):
            sem_post(&self._wake)


cdef object receive(EventQueue queue, object timeout):
    cdef long long now, until
    cdef long long nap = FIRST_SLEEP_NS
    cdef long long deadline = FOR_EVER
    cdef double timeout_s
    cdef timespec when
    timeout = seconds(timeout)
    if timeout is not None:
        timeout_s = timeout
        deadline = now_ns() + <long long>(timeout_s * 1e9)
    event = queue._take()
    if event is not None:
        return event
    queue._waiting += 1
    try:
        while True:
            # Handlers run before an event is taken, because they may raise.
            PyErr_CheckSignals()
            event = queue._take()
            if event is not None:
                return event
            now = now_ns()
            if now >= deadline:
                raise ReceiveTimeout(f"no event within {timeout} s" if timeout else "no event has arrived")
            until = min(now + nap, deadline)
            nap = min(2 * nap, <long long>MAX_SLEEP_NS)
            when.tv_sec = until // 1000000000
            when.tv_nsec = until % 1000000000
            with nogil:
                sem_wait_until(&queue._wake, &when)
    finally:
        queue._waiting -= 1
        if queue._waiting and queue._events:
            sem_post(&queue._wake)  # this call may leave the event of its wake-up to others


cdef class SyncEventQueue(EventQueue):
    """An event queue whose readers are threads; iterate over it, or call `recv`."""

    def recv(self, *, timeout: float | None = None) -> Event:
        """Waits for the next event.

        Args:
            timeout: Seconds; `None` for ever, 0 never.

        Raises:
            ReceiveTimeout: No event came in time.
            ClosedError: The socket is closed and all its events have been received, or the monitor is closed.
            StateError: The process has forked.
            ValueError: The timeout is below 0, or NaN.
            TypeError: The timeout is not a number.
        """
        return receive(self, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return receive(self, None)
        except ClosedError:
            raise StopIteration from None
