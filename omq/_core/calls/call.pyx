"""omq's own coroutine objects for the calls of an asyncio socket.

A call does nothing before it is awaited. If it can be served at once, it returns without suspending, without a Future
and without an allocation of its own (the objects come from a free list). Otherwise it waits in its wait queue, first
come first served. Its Waiter only wakes it up: the call takes the message when it runs again, so a cancelled call has
taken nothing.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_WarnEx
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from omq._core.clock cimport seconds
from omq._core.wire.send_buffer cimport Part
from omq._core.calls.attempt cimport READY_IN, READY_OUT, TAKE_INTO, TAKE_ONE, Take, count_of, events_of, ready_of, take
from omq._core.calls.async_base cimport AsyncSocketBase
from omq._core.calls.part cimport Parts, close_parts, messages_of, open_part, open_parts, open_target, parts_of, refuse_several
from omq._core.lock cimport pause_gc, resume_gc
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.peer cimport TURN_NS
from omq._core.calls.waiter cimport AsyncTurn, Waiter

from collections import deque
from collections.abc import Coroutine

from omq.errors import ClosedError, ReceiveTimeout, SendTimeout, StateError
from omq.types import POLL_IN, UNSET, Unset
# stub: from omq.message import Message

cdef extern from "Python.h":
    ctypedef int (*sendfunc)(PyObject *, PyObject *, PyObject **) except -1
    ctypedef struct PyAsyncMethods:
        void *am_send
    ctypedef struct PyTypeObject:
        PyAsyncMethods *tp_as_async

cdef extern from *:
    """
    static int raise_stop(void) { PyErr_SetNone(PyExc_StopIteration); return -1; }
    """
    int raise_stop() except -1

cdef enum:
    RESULT_RETURN = 0  # PySendResult
    RESULT_NEXT = 1


@cython.final
cdef class AsyncWaitQueue(WaitQueue):
    """Wakes the first call that waits; that call passes the wake-up on when it has been served."""

    def __cinit__(self):
        self.waiters = deque()

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Returns a Future that is done at the next notification; closing uses it to wait for the queues to drain."""
        # The socket may close in another loop than the one that it was used in.
        if self._watcher is None or self._watcher.done() or self._watcher.get_loop() is not loop:
            self._watcher = loop.create_future()
        return self._watcher

    cdef int look(self, long long spent) except -1:
        if self._core == NULL:
            return 0
        if spent > TURN_NS:
            (<AsyncCore>self._core)._reads = 0  # the loop's turn is due, however few messages were taken
        return (<AsyncSocketBase>self._core)._poller.look()

    cdef int notify(self) except -1:
        cdef Call first
        if self.follower is not None:
            self.follower()
        if self._watcher is not None:
            if not self._watcher.done() and not self._watcher.get_loop().is_closed():
                self._watcher.set_result(None)
            self._watcher = None
        if self._core != NULL and (<AsyncSocketBase>self._core)._readable_event is not None:
            (<AsyncSocketBase>self._core)._update_descriptor()
        if self.waiting:
            if self.apart:
                return self._wake_apart()
            first = <Call>self.waiters[0]
            if first._waiter is not None:
                first._waiter.wake()
        return 0

    cdef bint is_quiet(self) noexcept:
        cdef Waiter waiter
        if self._watcher is not None or self.follower is not None or (self._core != NULL and (<AsyncSocketBase>self._core)._readable_event is not None):
            return False
        if not self.waiting:
            return True
        waiter = (<Call>self.waiters[0])._waiter
        return not self.apart and (waiter is None or waiter.done)  # the first call is woken already

    cdef int _wake_apart(self) except -1:
        """Wakes the first call of each address, and calls without one."""
        cdef Call call
        cdef set seen = set()
        for call in self.waiters:
            if call._address is None or call._address not in seen:
                seen.add(call._address)
                if call._waiter is not None:
                    call._waiter.wake()
        return 0

    cdef bint is_first(self, Call call) except -1:
        """Returns whether no earlier call waits (for the same peer, if they wait apart); outside calls come last."""
        cdef Call other
        if not self.apart:
            return self.waiting == 0 or self.waiters[0] is call
        for other in self.waiters:
            if other is call:
                break
            if call._address is not None and other._address == call._address:
                return False
        return True

    cdef int enter(self, Call call) except -1:
        self.waiters.append(call)
        self.waiting += 1
        return 0

    cdef int leave(self, Call call) except -1:
        if self.waiting and call in self.waiters:
            first = self.waiters[0] is call
            self.waiters.remove(call)
            self.waiting -= 1
            if first or self.apart:
                self.notify()
        return 0

    def wake_all(self) -> None:
        """Wakes every call: the socket's state has changed for all of them."""
        if self.follower is not None:
            self.follower()
        for call in self.waiters:
            waiter = (<Call>call)._waiter
            if waiter is not None:
                (<Waiter>waiter).wake()


@cython.no_gc_clear  # __dealloc__ needs the wait queues; cycles are broken in the attributes that derived classes add
cdef class AsyncCore(AsyncSocketBase):
    """The message calls of an asyncio socket, and the two wait queues where they wait."""

    def __cinit__(self, *_, **__):
        self.readable = AsyncWaitQueue()
        self.writable = AsyncWaitQueue()
        self.turn = AsyncTurn()
        self.readable._core = <PyObject *>self

    def __dealloc__(self):
        if self.readable is not None:
            self.readable._core = NULL

    def _set_timeouts(self, send: float | None, recv: float | None) -> None:
        self._send_timeout = send
        self._recv_timeout = recv

    def _mark_closed(self) -> None:
        self.closed = True
        self.readable.wake_all()
        self.writable.wake_all()
        self._show_end()

    def send(self, data: Buffer, *, timeout: float | Unset | None = UNSET) -> Call[None]:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type does not send, or not now, or this is another loop.
            UnroutableError: No peer has the address (`router_mandatory`).
            ClosedError: The socket is closed.
        """
        return new_call(self, OP_SEND, data, self._send_timeout if timeout is UNSET else seconds(timeout))

    def send_multipart(self, parts: Iterable[Buffer], *, timeout: float | Unset | None = UNSET) -> Call[None]:
        """Sends a whole message, atomically.

        Args:
            parts: The parts, at least one; see `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            Exception: As `send`.
        """
        return new_call(self, OP_SEND_PARTS, parts, self._send_timeout if timeout is UNSET else seconds(timeout))

    def send_many(
        self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = UNSET
    ) -> Call[int]:
        """Sends many messages.

        Args:
            messages: The messages: one part each, see `send`, or a list or a tuple of the parts of a message.
            timeout: Seconds for all of them; see `send`.

        Returns:
            Number of accepted messages: fewer than given only if the time was up after the first.

        Raises:
            Exception: As `send` and `send_multipart`. Messages accepted before an error or a cancellation are sent.
        """
        return new_call(self, OP_SEND_MANY, messages, self._send_timeout if timeout is UNSET else seconds(timeout))

    def send_nowait(self, data: Buffer) -> None:
        """Sends a message of one part, or raises; not a coroutine (compare `asyncio.Queue.put_nowait`).

        The call never yields to the loop: between many calls, yield with `await asyncio.sleep(0)`.

        Args:
            data: The part, see `send`.

        Raises:
            SendTimeout: There is no room, or earlier calls wait for it. Nothing was sent.
            Exception: As `send`.
        """
        return finish(new_call(self, OP_SEND, data, 0.0))

    def send_multipart_nowait(self, parts: Iterable[Buffer]) -> None:
        """Sends a whole message, or raises; see `send_nowait` and `send_multipart`."""
        return finish(new_call(self, OP_SEND_PARTS, parts, 0.0))

    def send_many_nowait(self, messages: Iterable[Buffer | Sequence[Buffer]]) -> int:
        """Sends as many messages as there is room for; see `send_nowait` and `send_many`.

        Returns:
            Number of accepted messages, at least one.

        Raises:
            SendTimeout: There is no room for the first message.
            Exception: As `send_many`.
        """
        return finish(new_call(self, OP_SEND_MANY, messages, 0.0))

    def poll_nowait(self, events: int = POLL_IN) -> int:
        """Returns the events that are ready, or 0; not a coroutine. See `poll`."""
        return finish(new_call(self, OP_POLL, events_of(events), 0.0))

    def recv(self, *, timeout: float | Unset | None = UNSET) -> Call[bytes]:
        """Takes the next message, which has one part.

        Args:
            timeout: Seconds to wait; `None` for ever, 0 never; left out, `recv_timeout` holds.

        Raises:
            MultipartError: The message has several parts; it stays first in line.
            ReceiveTimeout: No message came in time.
            StateError: The type does not receive, or not now, or this is another loop.
            ClosedError: The socket is closed.
        """
        return new_call(self, OP_RECV, None, self._recv_timeout if timeout is UNSET else seconds(timeout))

    def recv_multipart(self, *, timeout: float | Unset | None = UNSET) -> Call[list[bytes]]:
        """Takes the next message whole; raises as `recv`, but for `MultipartError`."""
        return new_call(self, OP_RECV_PARTS, None, self._recv_timeout if timeout is UNSET else seconds(timeout))

    def recv_many(self, limit: int = 1024, *, timeout: float | Unset | None = UNSET) -> Call[list[bytes | list[bytes]]]:
        """Waits for a message, then takes all others that are available.

        After some 5 ms of work the call stops, whatever the limit: messages may come faster than it takes them.

        Args:
            limit: Messages to take at most, 1 or more.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            The messages: `bytes`, or a list of them where a message has several parts.
        """
        limit = count_of("limit", limit, 1)
        return new_call(self, OP_RECV_MANY, limit, self._recv_timeout if timeout is UNSET else seconds(timeout))

    def recv_into(self, buffer: Buffer, *, timeout: float | Unset | None = UNSET) -> Call[int]:
        """Takes the next message, of one part, into a buffer.

        Args:
            buffer: Writable and contiguous.
            timeout: Seconds; see `recv`.

        Returns:
            The size of the message in bytes.

        Raises:
            MessageTooLarge: The message does not fit; it stays first in line and the buffer's content is undefined.
            MultipartError: The message has several parts; it stays first in line.
        """
        return new_call(self, OP_RECV_INTO, buffer, self._recv_timeout if timeout is UNSET else seconds(timeout))

    def recv_message(self, *, timeout: float | Unset | None = UNSET) -> Call[Message]:
        """Takes the next message as a `Message`, with its parts and its sender."""
        return new_call(self, OP_RECV_MESSAGE, None, self._recv_timeout if timeout is UNSET else seconds(timeout))

    def poll(self, timeout: float | None = None, events: int = POLL_IN) -> Call[int]:
        """Waits until a message can be received or sent.

        Args:
            timeout: Seconds; `None` for ever.
            events: `POLL_IN`, `POLL_OUT` or both.

        Returns:
            The events that are ready; 0 if the time was up.
        """
        return new_call(self, OP_POLL, events_of(events), seconds(timeout))

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Call[bytes]:
        return new_call(self, OP_NEXT, None, self._recv_timeout)


cdef inline Call new_call(AsyncCore core, Operation operation, object argument, object timeout):
    cdef Call call = Call.__new__(Call)
    call._core = core
    call._state = STATE_NEW
    call._operation = operation
    call._argument = argument
    call._timeout = timeout
    return call


cdef object finish(Call call):
    """Serves a call that does not wait; returns its result."""
    while True:
        result = call._step()
        if not call._suspended:
            return result
        # A pending yield to the loop is the caller's business: this call cannot yield.


cdef Call send_to(AsyncCore core, object route, object parts, object timeout):
    """Makes a call that sends a message to the peer or group that *route* names."""
    cdef Call call = new_call(core, OP_SEND_TO, parts, core._send_timeout if timeout is UNSET else seconds(timeout))
    call._address = route
    return call


# stub: _T = TypeVar("_T", covariant=True)
# stub: class Call(Coroutine[Any, Any, _T], Generic[_T]):
@cython.final
@cython.freelist(64)
cdef class Call:
    """One call on an asyncio socket: a `collections.abc.Coroutine`. Only sockets make them."""

    def __reduce_ex__(self, protocol):
        raise TypeError("a call cannot be copied or pickled")

    def __dealloc__(self):
        if self._state == STATE_NEW and self._core is not None:
            PyErr_WarnEx(RuntimeWarning, b"a socket call was never awaited: it has done nothing", 1)

    def __await__(self) -> Generator[Any, Any, _T]:
        return self

    def __iter__(self):
        return self

    def __next__(self):
        result = self._step()
        if self._suspended:
            return result
        if result is None:
            raise_stop()
        raise StopIteration(result)

    def send(self, value: Any) -> Any:
        return self.__next__()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self._refuse_reentry()
        self._leave()
        self._end()
        if value is None:
            value = kind() if isinstance(kind, type) else kind
        elif not isinstance(value, BaseException):
            value = kind(*value) if isinstance(value, tuple) else kind(value)
        raise value if traceback is None else value.with_traceback(traceback)

    def close(self) -> None:
        self._refuse_reentry()
        if self._state != STATE_DONE:
            self._leave()
            self._end()

    def _expire(self):
        self._timer = None
        self._expired = True
        self._go_on()

    def _go_on(self):
        if self._waiter is not None:
            self._waiter.wake()

    cdef int _refuse_reentry(self) except -1:
        if self._stepping:
            raise RuntimeError("the call is being served: code that it runs cannot use it")
        return 0

    cdef object _step(self):
        """Runs until the call is finished or must wait; returns its result, or the object to yield to the loop."""
        self._refuse_reentry()
        self._suspended = False
        if self._state == STATE_NONE:
            raise TypeError("a call is not made directly: use the socket's methods")
        if self._state == STATE_DONE:
            raise RuntimeError("a call can be awaited only once")
        if self._state == STATE_WAITING and self._waiter is not None and not self._waiter.done:
            raise RuntimeError("another task awaits this call already")
        self._stepping = True
        try:
            return self._go()
        except BaseException as error:
            # An attempt that raises counts for the turn, too.
            self._count()
            self._leave()
            self._end()
            if self._operation == OP_NEXT and isinstance(error, ClosedError):
                raise StopAsyncIteration from None
            raise
        finally:
            self._stepping = False

    cdef object _go(self):
        cdef AsyncCore core = self._core
        cdef bint sending = self._operation <= OP_SEND_MANY
        if self._state == STATE_NEW:
            core._enter()
            if sending:
                self._prepare()
            # The loop's turn comes before the attempt, so that a call cancelled here has done nothing. The call does
            # not join the wait queue: tasks would line up there, each served once a turn of the loop.
            if (core._writes if sending else core._reads) <= 0 and core._pace():
                return self._rest()
        else:
            if self._state == STATE_YIELDED:
                core._begin_turn(core._task_now())
            else:
                core._wake()
            if core.closed:
                core._refuse("was closed while a call waited")
        if self._may_attempt(core.writable if sending else core.readable):
            result = self._try_once()
            if not self._complete and not self._suspended and self._at_once() and not core.closed:
                # Read what the kernel has: a program that polls in a loop gives the event loop no turn to read it.
                core._poller.serve()
                result = self._try_once()
            if self._complete:
                self._leave()
                self._end()
                return result
            if self._suspended:
                return None
        if core.closed:
            core._refuse("was closed by what the call ran")
        if self._expired or self._at_once():
            self._count()
            self._leave()
            result = self._give_up()
            self._end()
            return result
        return self._suspend()

    cdef int _count(self) except -1:
        """Counts a failed attempt for the turn, so that other tasks get their turn."""
        if self._operation <= OP_SEND_MANY:
            self._core._count_write()
        else:
            self._core._count_read()
        return 0

    cdef bint _at_once(self) except -1:
        """Returns whether this call does not wait."""
        return self._timeout is not None and self._timeout == 0

    cdef bint _may_attempt(self, AsyncWaitQueue wait_queue) except -1:
        """Returns whether it is this call's turn: earlier calls go first, even if this call's time is up."""
        if self._operation == OP_POLL:
            return True  # takes nothing from other calls
        if wait_queue.waiting == 0:
            return True
        return wait_queue.is_first(self)

    cdef int _prepare(self) except -1:
        """Determines the peer that a message names, where calls wait apart: calls for other peers do not hold it up."""
        if self._core.writable.apart and self._core.writable.waiting and self._operation == OP_SEND_PARTS:
            self._keep_parts()
            self._find_address()
        return 0

    cdef int _find_address(self) except -1:
        if type(self._argument) is not tuple or not self._argument:
            return 0
        first = (<tuple>self._argument)[0]
        if type(first) is bytes:
            self._address = first
            return 0
        try:
            self._address = bytes(memoryview(first))
        except (TypeError, ValueError, BufferError):
            pass  # the attempt to send raises the error
        return 0

    cdef int _keep_parts(self) except -1:
        """Copies the parts out of their iterable once: it may be a generator, and sending may be tried again."""
        self._argument = parts_of(self._argument)
        return 0

    cdef object _rest(self):
        """Yields to the loop, without a place in the wait queue: calls that run meanwhile need not wait."""
        self._leave()
        self._state = STATE_YIELDED
        self._suspended = True
        return None

    cdef object _suspend(self):
        cdef AsyncCore core = self._core
        # Messages that this socket has batched leave before the call waits.
        if core.send_queue is not None:
            core.send_queue.flush_pending()
        self._waiter = Waiter.__new__(Waiter)
        self._waiter._loop = core._loop
        self._waiter._turn = core.turn
        self._waiter._asyncio_future_blocking = True
        if self._state != STATE_WAITING:
            self._join_queue()
        if self._timer is None and self._timeout is not None:
            self._timer = core._loop.call_later(self._timeout, self._expire)
        if core.recv_queue is not None and core.recv_queue.unfinished and self._operation > OP_SEND_MANY:
            core._loop.call_soon(self._go_on)  # many messages were dropped, and more wait
        self._suspended = True
        return self._waiter

    cdef int _join_queue(self) except -1:
        """Joins the end of the wait queue."""
        self._state = STATE_WAITING
        if self._operation <= OP_SEND_MANY:
            if self._core.writable.apart and self._operation == OP_SEND_PARTS and self._address is None:
                self._find_address()
            self._core.writable.enter(self)
            self._core._writes = self._core._quota
        elif self._operation != OP_POLL:
            self._core.readable.enter(self)
            self._core._reads = self._core._quota
        else:
            self._core._reads = self._core._quota
            if self._argument & READY_IN:
                self._core.readable.enter(self)
            if self._argument & READY_OUT:
                self._core.writable.enter(self)
        return 0

    cdef int _leave(self) except -1:
        """Leaves the wait queue and gives up the wake-up with the place: the next call may find a message."""
        cdef AsyncWaitQueue wait_queue
        if self._state == STATE_WAITING:
            self._state = STATE_YIELDED
            for wait_queue in (self._core.readable, self._core.writable):
                wait_queue.leave(self)
        return 0

    cdef int _end(self) except -1:
        self._state = STATE_DONE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiter = None
        self._argument = None
        return 0

    cdef object _give_up(self):
        if self._operation == OP_POLL:
            return 0
        if self._operation == OP_SEND_MANY and self._progress:
            return self._progress
        if self._operation <= OP_SEND_MANY:
            raise SendTimeout(f"no room for the message within {self._timeout} s")
        raise ReceiveTimeout(f"no message within {self._timeout} s")

    # ------------------------------------------------------------------ the work of each call

    cdef object _try_once(self):
        """Attempts the call once; sets `_complete` if that served it."""
        pause_gc()
        try:
            return self._attempt()
        finally:
            resume_gc()

    cdef object _attempt(self):
        cdef AsyncCore core = self._core
        cdef int ready
        self._complete = False
        if self._operation <= OP_SEND_MANY:
            if core.send_queue is None:
                raise StateError(f"a {core._name()} socket does not send")
            if self._operation == OP_SEND:
                return self._send()
            if self._operation == OP_SEND_MANY:
                return self._send_many()
            return self._send_parts()
        if self._operation == OP_POLL:
            ready = ready_of(self._argument, core.recv_queue, core.send_queue)
            self._complete = ready != 0
            if self._complete:
                core._count_read()
            return ready
        if core.recv_queue is None:
            raise StateError(f"a {core._name()} socket does not receive")
        result = self._take()
        if result is not None:
            core._reads -= <int>len(<list>result) if self._operation == OP_RECV_MANY else 1
            self._complete = True
            core._update_descriptor()
        return result

    cdef object _take(self):
        cdef Py_buffer view
        if self._operation == OP_NEXT:
            return take(self._core.recv_queue, TAKE_ONE, None, NULL)
        if self._operation != OP_RECV_INTO:
            return take(self._core.recv_queue, <Take>(self._operation - OP_RECV), self._argument, NULL)
        open_target("buffer", self._argument, &view)
        try:
            return take(self._core.recv_queue, TAKE_INTO, None, &view)
        finally:
            PyBuffer_Release(&view)

    cdef object _send(self):
        cdef Part part
        cdef Py_buffer view
        cdef bint held
        data = self._argument
        if type(data) is bytes:
            part.data = PyBytes_AS_STRING(data)
            part.size = PyBytes_GET_SIZE(data)
            part.owner = <PyObject *>data
            self._complete = self._core.send_queue.put(&part, 1)
        else:
            held = open_part(data, &part, &view)
            try:
                self._complete = self._core.send_queue.put(&part, 1)
            finally:
                if held:
                    PyBuffer_Release(&view)
        self._core._count_write()
        return None

    cdef object _send_parts(self):
        cdef Parts parts
        self._keep_parts()
        open_parts(&parts, self._argument, True)
        try:
            if parts.count > 1 and self._core.send_queue.single_part:
                refuse_several(self._core._name(), parts.count)
            if self._operation == OP_SEND_TO:
                self._complete = self._core.send_queue.put_to(self._address, parts.parts, parts.count)
            else:
                self._complete = self._core.send_queue.put(parts.parts, parts.count)
        finally:
            close_parts(&parts)
        self._core._count_write()
        return None

    cdef object _send_many(self):
        if type(self._argument) is not list and type(self._argument) is not tuple:
            self._argument = messages_of(self._argument)
        self._core.send_queue.begin_many()
        try:
            return self._put_many(self._argument)
        finally:
            self._core.send_queue.end_many()

    cdef object _put_many(self, messages):
        cdef Part part
        cdef Parts parts
        cdef Py_buffer view
        cdef bint held, taken
        while self._progress < len(messages):  # other code runs in between, and may change the list
            if self._core._writes <= 0 and self._core._pace():
                return self._rest()
            self._core.send_queue.more = self._progress + 1 < len(messages)
            data = messages[self._progress]
            if type(data) is tuple or type(data) is list:
                open_parts(&parts, data, True)
                try:
                    if parts.count > 1 and self._core.send_queue.single_part:
                        refuse_several(self._core._name(), parts.count)
                    taken = self._core.send_queue.put(parts.parts, parts.count)
                finally:
                    close_parts(&parts)
            else:
                held = open_part(data, &part, &view)
                try:
                    taken = self._core.send_queue.put(&part, 1)
                finally:
                    if held:
                        PyBuffer_Release(&view)
            if not taken:
                return None
            self._core._count_write()
            self._progress += 1
        if not self._progress:
            self._core._count_write()
        self._complete = True
        return self._progress


cdef int call_send(PyObject *self, PyObject *value, PyObject **result) except -1:
    """Implements am_send: `await` without a StopIteration (`PyAsyncMethods.am_send`)."""
    cdef Call call = <Call>self
    if call._state == STATE_NEW and serve_at_once(call, result):
        return RESULT_RETURN
    outcome = call._step()
    Py_INCREF(outcome)
    result[0] = <PyObject *>outcome
    return RESULT_NEXT if call._suspended else RESULT_RETURN


cdef inline int serve_at_once(Call call, PyObject **result) except -1:
    """Serves the common case in as few steps as possible: room for the message, or a message that waits."""
    cdef AsyncCore core = call._core
    cdef Part part
    cdef bint taken
    if call._operation == OP_SEND:
        if (core._writes <= 0 or core.writable.waiting or core.send_queue is None or type(call._argument) is not bytes
                or core.closed or not core._at_home()):
            return 0
        part.data = PyBytes_AS_STRING(call._argument)
        part.size = PyBytes_GET_SIZE(call._argument)
        part.owner = <PyObject *>call._argument
        call._state = STATE_DONE
        core._count_write()  # a rejected message counts, too
        if not (core.send_queue.quick and core.send_queue.put_quickly(&part)):
            pause_gc()
            try:
                taken = core.send_queue.put(&part, 1)
            finally:
                resume_gc()
            if not taken:
                call._state = STATE_NEW
                return 0
        Py_INCREF(None)
        result[0] = <PyObject *>None
        return 1
    if call._operation == OP_RECV:
        if core._reads <= 0 or core.readable.waiting or core.recv_queue is None or core.closed or not core._at_home():
            return 0
        call._state = STATE_DONE
        core._reads -= 1
        message = core.recv_queue.take_quickly()
        if message is None:
            pause_gc()
            try:
                message = core.recv_queue.take()
            finally:
                resume_gc()
            if message is None:
                call._state = STATE_NEW
                return 0
        if core._readable_event is not None:
            core._update_descriptor()
        Py_INCREF(message)
        result[0] = <PyObject *>message
        return 1
    return 0


# Cython has no special method for this slot.
(<PyTypeObject *>Call).tp_as_async.am_send = <void *>call_send
Coroutine.register(Call)
