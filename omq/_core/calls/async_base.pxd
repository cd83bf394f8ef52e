# An asyncio socket without its calls.

from omq._core.clock cimport tick
from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.link.poller cimport Poller
from omq._core.calls.readable_event cimport ReadableEvent


cdef class AsyncSocketBase:
    cdef readonly RecvQueue recv_queue  # None: the type does not receive
    cdef readonly SendQueue send_queue  # None: the type does not send
    cdef object _loop                   # the loop that the socket belongs to; None until first use
    cdef object _running                # returns the running loop, or None
    cdef object _current_task           # returns a loop's current task, or None
    cdef object _eager_tasks            # tasks that began within another task's step (Python 3.12)
    cdef readonly bint closed
    cdef bint _stale                    # the socket belongs to the parent process; then `closed` is true, too
    cdef unsigned long _thread          # ident of the thread where the loop runs
    cdef object _is_running             # the loop's own method
    cdef Poller _poller                 # the epoll set of the socket's connections
    cdef ReadableEvent _readable_event  # readable while a message waits; None: `fileno` was not called
    cdef ReadableEvent _kept            # the same event, kept as long as the socket: its descriptor stays valid
    cdef bint _at_home(self) except -1
    cdef int _enter(self) except -1
    cdef int _refuse(self, str why) except -1
    cdef int _show_end(self) except -1
    cdef int _update_descriptor(self) except -1
    cdef int _reads                     # messages, and empty calls, left before a receiving call yields to the loop
    cdef int _writes                    # likewise for sending
    cdef int _quota                     # the initial value of `_reads` and `_writes`
    cdef long long _since               # nanoseconds on the monotonic clock, when `_reads` and `_writes` were reset
    cdef long long _tick                # the kernel's tick at that time
    cdef object _task                   # the task that called then; None: no task, or the loop has had a turn since
    cdef bint _turned                   # the loop has had a turn since
    cdef bint _marked                   # `_mark` is scheduled: it runs in the loop's next turn
    cdef bint _pace(self) except -1
    cdef object _task_now(self)
    cdef int _begin_turn(self, task) except -1
    cdef void _wake(self) noexcept

    cdef inline void _count_write(self) noexcept:
        """Counts an attempt to send. A new tick uses up the quota: nothing else shows long work between two calls."""
        self._writes = self._writes - 1 if tick() == self._tick else 0

    cdef inline void _count_read(self) noexcept:
        """Counts a call that received nothing. For received messages the receive queue checks the clock."""
        self._reads = self._reads - 1 if tick() == self._tick else 0
