# What an asyncio socket has apart from its calls.

from omq._core.clock cimport tick
from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.link.poller cimport Poller
from omq._core.calls.readable_event cimport ReadableEvent


cdef class AsyncSocketBase:
    cdef readonly RecvQueue recv_queue  # None: the type does not receive
    cdef readonly SendQueue send_queue  # None: the type does not send
    cdef object _loop                # the loop that the socket belongs to; None until first use
    cdef object _running             # gives the running loop, or None
    cdef object _current_task        # gives a loop's current task, or None
    cdef object _eager_tasks         # those that have begun within another one's step (Python 3.12)
    cdef readonly bint closed
    cdef bint _stale                 # it is the parent process's; then `closed` is true, too
    cdef unsigned long _thread       # where the loop runs
    cdef object _is_running          # the loop's own method
    cdef Poller _poller              # the epoll set of its connections
    cdef ReadableEvent _readable_event  # shows what arrives; None: nobody wants to see it
    cdef ReadableEvent _kept         # the same, also while nobody does: a number that was given stays the user's
    cdef bint _at_home(self) except -1
    cdef int _enter(self) except -1
    cdef int _refuse(self, str why) except -1
    cdef int _show_end(self) except -1
    cdef int _tell(self) except -1
    cdef int _reads                  # messages, and calls in vain, left before a receiving call yields to the loop
    cdef int _writes                 # likewise for sending
    cdef int _quota                  # what both begin with
    cdef long long _since            # nanoseconds on the monotonic clock, when they last did
    cdef long long _tick             # the kernel's tick at that time
    cdef object _task                # which task called then; None: none did, or the loop has had a turn since
    cdef bint _turned                # the loop has had a turn since
    cdef bint _marked                # it will tell when it has
    cdef bint _pace(self) except -1
    cdef object _task_now(self)
    cdef int _begin_turn(self, task) except -1
    cdef void _wake(self) noexcept

    cdef inline void _count_write(self) noexcept:
        """A message is sent, or was in vain. Nobody else sees that the owner works for long between two."""
        self._writes = self._writes - 1 if tick() == self._tick else 0

    cdef inline void _count_read(self) noexcept:
        """A call has received nothing. (What is received, the receive queue looks at the clock for.)"""
        self._reads = self._reads - 1 if tick() == self._tick else 0
