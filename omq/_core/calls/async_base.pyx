"""An asyncio socket without its calls: its loop, its yields to the loop, its queues, and its descriptor."""

from cpython.pythread cimport PyThread_get_thread_ident

from omq._core.calls.readable_event cimport ReadableEvent
from omq._core.clock cimport now_ns, tick
from omq._core.queues.peer cimport TURN_MESSAGES, TURN_NS

from omq.errors import ClosedError, StateError


cdef class AsyncSocketBase:
    """An asyncio socket without its calls.

    The derived class attaches the queues (`_assemble`) and the loop (`_attach`), and marks the end (`_mark_closed`).

    Attributes:
        closed: Whether the socket is closed, or closing.
    """
    # stub: recv_queue: RecvQueue | None
    # stub: send_queue: SendQueue | None

    def __cinit__(self, *_, **__):
        self._reads = self._writes = self._quota = TURN_MESSAGES

    def _assemble(
        self,
        recv_queue: RecvQueue | None,
        send_queue: SendQueue | None,
        running: Any,
        current_task: Any,
        eager_tasks: Any,
        poller: Poller,
    ) -> None:
        self.recv_queue = recv_queue
        if self.recv_queue is not None:
            self.recv_queue.ticks = True
        self.send_queue = send_queue
        self._running = running
        self._current_task = current_task
        self._eager_tasks = eager_tasks
        self._poller = poller

    def _set_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = PyThread_get_thread_ident()
        self._is_running = loop.is_running
        self._marked = False  # the `_mark` that another loop scheduled may never run
        self._wake()

    cdef bint _pace(self) except -1:
        """Returns whether the loop is due a turn, after about a millisecond of calls; restarts the count if it is.

        The loop has had a turn if `_mark` has run, or if the calling task has changed since the count began. A task
        that begins eagerly does not count: it runs within the step of another task.
        """
        cdef long long spent = now_ns() - self._since
        task = self._task_now()
        cdef bint eager = task in self._eager_tasks
        cdef bint due = not self._turned and (eager or task is self._task)
        if not due or 2 * spent < TURN_NS:
            self._quota = min(2 * self._quota, <int>TURN_MESSAGES)
        elif spent > TURN_NS:
            self._quota = max(1, <int>(self._quota * TURN_NS // spent))
        self._begin_turn(task)
        if due and eager:
            self._reads = self._writes = 0  # tasks that begin in the same step must not overtake this one
        return due

    cdef object _task_now(self):
        """Returns the calling task; None: no task calls."""
        return self._current_task(self._loop)

    cdef int _begin_turn(self, task) except -1:
        """Begins to count the work of *task* until the loop's next turn."""
        self._wake()
        self._reads = self._writes = self._quota
        self._turned = False
        self._task = task
        if not self._marked:
            self._loop.call_soon(self._mark)
            self._marked = True
        return 0

    cdef void _wake(self) noexcept:
        """Notes that a call that waited continues: the loop has just had a turn."""
        self._since = now_ns()
        self._tick = tick()
        self._turned = True

    def _mark(self):
        """Notes that the loop has a turn."""
        self._marked = False
        self._turned = True
        self._task = None

    cdef int _show_end(self) except -1:
        """Wakes threads that select on the descriptor: the socket is closed. Closes a released descriptor."""
        if self._readable_event is not None:
            self._readable_event.show(True)
        elif self._kept is not None:
            self._kept.close()
            self._kept = None
        return 0

    cdef int _update_descriptor(self) except -1:
        """Makes the user's descriptor readable if a message waits, else unreadable."""
        if self._readable_event is not None and not self.closed:
            self._readable_event.follow(self.recv_queue)
            if self.recv_queue.unfinished:
                self._loop.call_soon(self._continue_update)
        return 0

    def _continue_update(self):
        """Continues after many dropped messages, when more messages wait."""
        self._update_descriptor()

    def fileno(self) -> int:
        """Returns a descriptor that is readable exactly while a message waits: level-triggered, for any `select`.

        The descriptor stays the same and belongs to the socket. It becomes readable when the socket closes, or at
        `release_fileno`. While a task waits in a receiving call, that call gets the messages.

        Raises:
            StateError: The type does not receive, or this is another loop.
            ClosedError: The socket is closed.
        """
        self._enter()
        if self.recv_queue is None:
            raise StateError(f"a {self._name()} socket does not receive: it has no descriptor to wait on")
        if self._readable_event is None:
            if self._kept is None:
                self._kept = ReadableEvent()
            self._readable_event = self._kept
            self._update_descriptor()
        return self._kept.fd

    def release_fileno(self) -> None:
        """Releases the descriptor of `fileno`: it no longer shows whether a message waits.

        Take the descriptor out of selectors and loops first. A thread that still selects on it wakes up: from now on
        the descriptor is readable all the time, as after `close`. It stays open until the socket is closed, so that no
        new file gets its number, and a later `fileno` returns it again. After `close` this method closes the
        descriptor. It does nothing if `fileno` has not been called.

        Raises:
            StateError: This is another loop, or the process has forked.
        """
        if self._stale:
            self._refuse("")
        if self._readable_event is not None:
            if self.closed:
                self._readable_event = None
                self._show_end()
                return
            self._enter()
            self._readable_event = None
            self._kept.show(True)

    def _name(self):
        return type(self).__name__

    def _attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        raise AssertionError("the derived class must override _attach()")

    cdef bint _at_home(self) except -1:
        """Returns whether the socket's own loop runs in this thread. (asyncio's check costs a getpid.)"""
        return self._thread == PyThread_get_thread_ident() and self._loop is not None and self._is_running() is True

    cdef int _enter(self) except -1:
        """Begins a call: rejects a closed socket and another loop."""
        if self.closed:
            self._refuse("is closed")
        if not self._at_home():
            self._attach(self._running())
        return 0

    cdef int _refuse(self, str why) except -1:
        """Raises the error with the reason why the socket cannot be used."""
        if self._stale:
            raise StateError(f"the {self._name()} socket belongs to the parent process: make a new one after fork()")
        raise ClosedError(f"the {self._name()} socket {why}")

    def _abandon(self) -> None:
        """Closes the inherited descriptors in a forked child; the epoll set stays as it is, for the parent."""
        self.closed = self._stale = True
        self._poller.close()
        self._readable_event = self._kept = None
