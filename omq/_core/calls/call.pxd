# The asyncio twin's calls: coroutine objects without a frame, and the wait queues where they wait.

from cpython.object cimport PyObject

from omq._core.calls.async_base cimport AsyncSocketBase
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.calls.waiter cimport AsyncTurn, Waiter

cdef enum Operation:
    OP_SEND
    OP_SEND_PARTS
    OP_SEND_TO  # with a route, the call's address
    OP_SEND_MANY
    OP_RECV     # OP_RECV to OP_RECV_MESSAGE are in the order of Take
    OP_RECV_PARTS
    OP_RECV_MANY
    OP_RECV_INTO
    OP_RECV_MESSAGE
    OP_NEXT
    OP_POLL

cdef enum State:
    STATE_NONE     # not made by a socket
    STATE_NEW
    STATE_YIELDED  # yields to the loop, or has left its wait queue
    STATE_WAITING  # waits in a wait queue
    STATE_DONE


cdef class AsyncWaitQueue(WaitQueue):
    cdef object waiters              # deque of Call, first come first
    cdef Py_ssize_t waiting          # calls in `waiters`
    cdef int enter(self, Call call) except -1
    cdef int leave(self, Call call) except -1
    cdef int look(self, long long spent) except -1
    cdef int _wake_apart(self) except -1
    cdef bint is_first(self, Call call) except -1
    cdef object follower             # a proxy's callback, called at each notification without arguments; None: no proxy
    cdef object _watcher             # a Future that is done at the next notification; None: no watcher
    cdef PyObject *_core             # the socket, borrowed; NULL in its `writable`, and once the socket is gone


cdef class AsyncCore(AsyncSocketBase):
    cdef readonly AsyncWaitQueue readable
    cdef readonly AsyncWaitQueue writable
    cdef readonly AsyncTurn turn
    cdef object _send_timeout        # seconds; None for ever
    cdef object _recv_timeout


cdef object finish(Call call)
cdef Call send_to(AsyncCore core, object route, object parts, object timeout)


cdef class Call:
    cdef AsyncCore _core
    cdef Operation _operation
    cdef State _state
    cdef object _argument
    cdef object _timeout             # seconds, None for ever
    cdef Waiter _waiter              # what the task waits for while STATE_WAITING
    cdef object _timer
    cdef bint _expired               # the time is up
    cdef bint _suspended             # the last step did not finish
    cdef bint _complete              # the last attempt succeeded
    cdef bint _stepping              # the call is being served
    cdef object _address             # the route, or where calls wait apart the peer's identity; None: unknown
    cdef Py_ssize_t _progress        # send_many: messages accepted so far
    cdef object _step(self)
    cdef object _go(self)
    cdef int _count(self) except -1
    cdef int _refuse_reentry(self) except -1
    cdef object _try_once(self)
    cdef object _attempt(self)
    cdef bint _at_once(self) except -1
    cdef bint _may_attempt(self, AsyncWaitQueue wait_queue) except -1
    cdef int _prepare(self) except -1
    cdef int _find_address(self) except -1
    cdef int _keep_parts(self) except -1
    cdef int _join_queue(self) except -1
    cdef int _leave(self) except -1
    cdef int _end(self) except -1
    cdef object _give_up(self)
    cdef object _send(self)
    cdef object _send_parts(self)
    cdef object _send_many(self)
    cdef object _put_many(self, messages)
    cdef object _take(self)
    cdef object _rest(self)
    cdef object _suspend(self)
