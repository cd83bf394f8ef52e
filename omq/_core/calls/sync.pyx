"""The calls of a blocking socket, on the thread that makes them.

A call takes the socket's lock, tries, and returns. If it must wait, it waits in `LeaderCore`.
"""

# stub: from omq.message import Message

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EINTR, errno
from libc.stdlib cimport free, malloc
from posix.time cimport timespec

from omq._core.wire.send_buffer cimport Part
from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns, seconds
from omq._core.calls.attempt cimport (
    READY_BOTH,
    READY_IN,
    TAKE_INTO,
    TAKE_MANY,
    TAKE_MESSAGE,
    TAKE_ONE,
    TAKE_PARTS,
    Take,
    count_of,
    events_of,
    ready_of,
    take,
)
from omq._core.calls.columns cimport take_columns
from omq._core.calls.leader cimport FOR_EVER, LeaderCore, BlockedCall, SyncWaitQueue
from omq._core.calls.readable_event cimport ReadableEvent
from omq._core.calls.part cimport Parts, close_parts, messages_of, open_parts, open_target, refuse_several
from omq._core.link.convoy_breaker cimport yield_if_requested
from omq._core.queues.peer cimport RecvQueue

import os

from omq.errors import ClosedError, ReceiveTimeout, SendTimeout, StateError, TransportError
from omq.types import POLL_IN, UNSET, Unset

cdef extern from "<poll.h>" nogil:
    ctypedef unsigned long nfds_t
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd *, nfds_t, const timespec *, void *)
    short POLLIN

cdef enum:
    TAKE_COLUMNS = TAKE_MESSAGE + 1  # of blocking sockets only


cdef inline int check(object timeout) except -1:
    """Rejects an invalid timeout before the call does anything, even if the call will not have to wait."""
    if timeout is not UNSET:
        seconds(timeout)
    return 0


cdef inline long long deadline_of(object timeout) except -1:
    """Returns the deadline in nanoseconds on the monotonic clock, or FOR_EVER. The timeout has been checked."""
    if timeout is None:
        return FOR_EVER
    return now_ns() + <long long>(<double>timeout * 1e9)


cdef class SyncCore(LeaderCore):
    """The message calls of a blocking socket."""

    def _set_timeouts(self, send: float | None, recv: float | None) -> None:
        self._send_timeout = send
        self._recv_timeout = recv

    # ------------------------------------------------------------------ receiving

    cdef object _try(self, int how, object argument, Py_buffer *into):
        """Attempts the call once; None if there is no message."""
        if how == TAKE_COLUMNS:
            return take_columns(self.recv_queue, argument[0], argument[1], argument[2]) or None
        return take(self.recv_queue, <Take>how, argument, into)

    cdef object _take(self, int how, object argument, object timeout, Py_buffer *into=NULL):
        cdef bint offered = False
        cdef BlockedCall blocked_call
        cdef long long deadline
        cdef bint in_time = True
        timeout = self._recv_timeout if timeout is UNSET else seconds(timeout)
        if self.recv_queue is None:
            raise StateError(f"a {self._name()} socket does not receive")
        if self._readable_event is not None:
            yield_if_requested()
        self._enter()
        try:
            # A call that looks for a message reads one that has come. Each large message takes a turn, so it is time
            # to read.
            if into != NULL and self.recv_queue.is_idle():
                offered = self.recv_queue.offer(<char *>into.buf, into.len)
            if self.recv_queue.look_if_due():
                self._run_handlers()
            result = self._try(how, argument, into)
            if result is None:
                if into != NULL and not offered:
                    offered = self.recv_queue.offer(<char *>into.buf, into.len)
                # Messages that this socket has batched leave before the call waits.
                if self.send_queue is not None:
                    self.send_queue.flush_pending()
                # One check of the descriptors before a wait, if the peer sends faster or the call may not wait.
                if self._behind or (timeout is not None and timeout == 0):
                    self.looks += 1
                    self.poller.serve()
                    self._run_handlers()
                    result = self._try(how, argument, into)
            if result is None:
                if timeout is not None and timeout == 0:
                    raise ReceiveTimeout("no message has arrived")
                deadline = deadline_of(timeout)
                blocked_call = BlockedCall(self)
                self.readable.enter(blocked_call)
                try:
                    while result is None:
                        if not in_time:
                            raise ReceiveTimeout(f"no message within {timeout} s")
                        in_time = self._wait_or_yield(blocked_call, deadline)
                        if self.closed:
                            raise ClosedError(f"the {self._name()} socket was closed while a call waited")
                        result = self._try(how, argument, into)
                finally:
                    self._stand_up(self.readable, blocked_call)
            self._behind = self.recv_queue.has_ready()
            if self._readable_event is not None:
                self._update_descriptor()
            return result
        finally:
            try:
                if offered:
                    self.recv_queue.withdraw()
            finally:
                self._leave()

    def recv(self, *, timeout: float | Unset | None = UNSET) -> bytes:
        """Takes the next message, which has one part.

        Args:
            timeout: Seconds to wait; `None` for ever, 0 never; left out, `recv_timeout` holds.

        Raises:
            MultipartError: The message has several parts; it stays first in line.
            ReceiveTimeout: No message came in time.
            StateError: The type does not receive, or not now.
            ClosedError: The socket is closed.
        """
        cdef object message
        check(timeout)
        message = self._take_now(False)
        if message is not None:
            return message
        return self._take(TAKE_ONE, None, timeout)

    def recv_multipart(self, *, timeout: float | Unset | None = UNSET) -> list[bytes]:
        """Takes the next message whole; raises as `recv`, but for `MultipartError`."""
        return self._take(TAKE_PARTS, None, timeout)

    def recv_many(self, limit: int = 1024, *, timeout: float | Unset | None = UNSET) -> list[bytes | list[bytes]]:
        """Waits for a message, then takes all others that are available.

        After some 20 ms of work the call stops, whatever the limit: messages may come faster than it takes them.

        Args:
            limit: Messages to take at most, 1 or more.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            The messages: `bytes`, or a list of them where a message has several parts.
        """
        limit = count_of("limit", limit, 1)
        return self._take(TAKE_MANY, limit, timeout)

    def recv_into(self, buffer: Buffer, *, timeout: float | Unset | None = UNSET) -> int:
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
        cdef Py_buffer view
        open_target("buffer", buffer, &view)
        try:
            return self._take(TAKE_INTO, None, timeout, &view)
        finally:
            PyBuffer_Release(&view)

    def recv_columns(self, data: Buffer, ends: Buffer, start: int = 0, *, timeout: float | Unset | None = UNSET) -> int:
        """Waits for a message, then takes all others that are available into columns, as Arrow keeps binary values.

        Bodies are copied one after the other; no Python object is made for a message.

        Args:
            data: Writable and contiguous: the buffer for the bodies.
            ends: Writable and contiguous: gets the offset in `data` after each body, 4 bytes each (int32, native
                byte order). Its size bounds the number of messages.
            start: The offset in `data` of the first body.
            timeout: Seconds to wait for the first message; see `recv`.

        Returns:
            Number of messages taken, at least 1. One that does not fit, or has several parts, stays first in line.

        Raises:
            MessageTooLarge: The first message does not fit after `start`; it stays first in line.
            MultipartError: The first message has several parts; it stays first in line.
            StateError: The type does not receive, or shapes messages: REQ, REP, ROUTER, DISH, STREAM.
        """
        return self._take(TAKE_COLUMNS, (data, ends, start), timeout)

    def recv_message(self, *, timeout: float | Unset | None = UNSET) -> Message:
        """Takes the next message as a `Message`, with its parts and its sender."""
        return self._take(TAKE_MESSAGE, None, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return self.recv()
        except ClosedError:
            raise StopIteration from None

    # ------------------------------------------------------------------ sending

    cdef int _put(self, object data, bint several, object route, object timeout) except -1:
        """Sends one message, of one part or of several; waits for room. *route*: its peer or group; None: not given."""
        cdef Parts parts
        cdef BlockedCall blocked_call = None
        cdef long long deadline = 0
        cdef bint in_time = True
        timeout = self._send_timeout if timeout is UNSET else seconds(timeout)
        if self.send_queue is None:
            raise StateError(f"a {self._name()} socket does not send")
        open_parts(&parts, data, several)
        try:
            if parts.count > 1 and self.send_queue.single_part:
                refuse_several(self._name(), parts.count)
            self._enter()
            try:
                while not (
                    self.send_queue.put(parts.parts, parts.count)
                    if route is None
                    else self.send_queue.put_to(route, parts.parts, parts.count)
                ):
                    if blocked_call is None:
                        if timeout is not None and timeout == 0:
                            raise SendTimeout("there is no room for the message")
                        deadline = deadline_of(timeout)
                        blocked_call = BlockedCall(self)
                        self.writable.enter(blocked_call)
                    elif not in_time:
                        raise SendTimeout(f"no room for the message within {timeout} s")
                    in_time = self._sleep(blocked_call, deadline)
                    if self.closed:
                        raise ClosedError(f"the {self._name()} socket was closed while a call waited")
            finally:
                if blocked_call is not None:
                    self._stand_up(self.writable, blocked_call)
                self._leave()
        finally:
            close_parts(&parts)
        return 0

    def send(self, data: Buffer, *, timeout: float | Unset | None = UNSET) -> None:
        """Sends a message of one part.

        Args:
            data: The part: anything with a contiguous buffer. `bytes`, and views over `bytes`, are borrowed; any
                other content is used within the call or copied.
            timeout: Seconds to wait for room; `None` for ever, 0 never; left out, `send_timeout` holds.

        Raises:
            TypeError: `data` has no contiguous buffer.
            SendTimeout: There was no room in time. Nothing was sent.
            StateError: The type does not send, or not now.
            UnroutableError: No peer has the address (`router_mandatory`).
            ClosedError: The socket is closed.
        """
        check(timeout)
        # The common case: bytes, and room for them.
        if type(data) is bytes and self._put_bytes(data):
            return
        self._put(data, False, None, timeout)

    def send_multipart(self, parts: Iterable[Buffer], *, timeout: float | Unset | None = UNSET) -> None:
        """Sends a whole message, atomically.

        Args:
            parts: The parts, at least one; see `send`.
            timeout: Seconds; see `send`.

        Raises:
            ValueError: There are no parts.
            Exception: As `send`.
        """
        self._put(parts, True, None, timeout)

    def send_many(self, messages: Iterable[Buffer | Sequence[Buffer]], *, timeout: float | Unset | None = UNSET) -> int:
        """Sends many messages.

        Args:
            messages: The messages: one part each, see `send`, or a list or a tuple of the parts of a message.
            timeout: Seconds for all of them; see `send`.

        Returns:
            Number of accepted messages: fewer than given only if the time was up after the first.

        Raises:
            Exception: As `send` and `send_multipart`. Messages accepted before an error are sent.
        """
        cdef Py_ssize_t sent = 0
        cdef Part part
        cdef int done
        cdef Py_ssize_t run
        cdef list sequence
        cdef long long deadline
        timeout = self._send_timeout if timeout is UNSET else seconds(timeout)
        if self.send_queue is None:
            raise StateError(f"a {self._name()} socket does not send")
        sequence = messages_of(messages)
        deadline = deadline_of(timeout)
        # The list is the caller's: other threads may change it while this thread waits, or works without the GIL.
        while sent < len(sequence):
            self._enter()
            try:
                while sent < len(sequence):
                    run = self.send_queue.put_run(sequence, sent)
                    if run:
                        sent += run
                        continue
                    if sent >= len(sequence):
                        break  # the GIL was free in between
                    data = sequence[sent]
                    if type(data) is not bytes:
                        break
                    part.data = PyBytes_AS_STRING(data)
                    part.size = PyBytes_GET_SIZE(data)
                    part.owner = <PyObject *>data
                    if not self.send_queue.put(&part, 1):
                        break
                    sent += 1
            finally:
                self.lock.release()
            if sent < len(sequence):
                data = sequence[sent]
                try:
                    self._put(data, type(data) is tuple or type(data) is list, None, rest_of(deadline))
                except SendTimeout:
                    if sent == 0:
                        raise
                    return sent
                sent += 1
        return sent

    # ------------------------------------------------------------------ descriptors to select on

    cdef int _publish(self) except -1:
        """Makes the I/O thread read from now on, so that the descriptor shows what arrives without a call."""
        if self._readable_event is None:
            if self._kept is None:
                self._kept = ReadableEvent()
            self._readable_event = self._kept
            self.poller.serve()
            self._update_descriptor()
            # If the I/O thread watches already, it continues: it checks under the lock before it stops. One request at
            # a time: a caller that waits repeatedly before the I/O thread runs makes one request.
            if self._bell is not None and not self.watched and not self._called:
                self._called = True
                self._bell.post(self._attend)
        return 0

    cdef int _conceal(self) except -1:
        """Makes callers read again once no descriptor is in use: the first one that waits takes the epoll set back."""
        if self._readable_event is not None and not self._wanted and not self._borrowers and not self.closed:
            self._readable_event = None
            if self._given:
                self._kept.show(True)
        return self._release_kept()

    def fileno(self) -> int:
        """Returns a descriptor that is readable exactly while a message waits; level-triggered.

        The descriptor belongs to the socket: select on it, and do nothing else with it. From the first call of `fileno`
        until `release_fileno` the I/O thread reads for the socket.

        Raises:
            StateError: The type does not receive.
            ClosedError: The socket is closed.
        """
        self._enter()
        try:
            self._refuse_unless_receiving()
            self._publish()
            self._given = self._wanted = True
            return self._kept.fd
        finally:
            self._leave()

    def release_fileno(self) -> None:
        """Releases the descriptor of `fileno`: calling threads read for themselves again.

        Take the descriptor out of selectors and loops first. A thread that still selects on it wakes up: from now on
        the descriptor is readable all the time, as after `close`. It stays open until the socket is closed, so that no
        new file gets its number, and a later `fileno` returns it again. After `close` this method closes the
        descriptor. It does nothing if `fileno` has not been called.

        Raises:
            StateError: The process has forked.
        """
        if self._fork_guard.stale:
            self._refuse()
        self.lock.enter()
        try:
            self._wanted = False
            self._conceal()
        finally:
            self._leave()

    cdef int _borrow(self, int *borrowed) except -1:
        """Lends a descriptor, like `fileno`, to a wait for several sockets until `_give_back`; counts up *borrowed*."""
        self._enter()
        try:
            self._refuse_unless_receiving()
            self._publish()
            self._borrowers += 1
            borrowed[0] += 1
            return self._kept.fd
        finally:
            self._leave()

    cdef int _give_back(self) except -1:
        """Ends what `_borrow` began."""
        if self._fork_guard.stale:
            return 0
        self.lock.enter()
        try:
            self._borrowers -= 1
            self._conceal()
        finally:
            self._leave()
        return 0

    cdef int _refuse_unless_receiving(self) except -1:
        if self.recv_queue is None:
            raise StateError(f"a {self._name()} socket does not receive: it has no descriptor to wait on")
        return 0

    # ------------------------------------------------------------------ readiness

    def poll(self, timeout: float | None = None, events: int = POLL_IN) -> int:
        """Waits until a message can be received or sent.

        Args:
            timeout: Seconds; `None` for ever.
            events: `POLL_IN`, `POLL_OUT` or both.

        Returns:
            The events that are ready; 0 if the time was up.
        """
        cdef long long deadline
        cdef BlockedCall blocked_call = None
        cdef SyncWaitQueue wait_queue
        cdef bint in_time = True
        cdef int wanted = events_of(events)
        cdef int ready
        deadline = deadline_of(seconds(timeout))
        self._enter()
        try:
            wait_queue = self.readable if wanted & READY_IN else self.writable
            if self.send_queue is not None:
                self.send_queue.flush_pending()
            try:
                while True:
                    ready = ready_of(wanted, self.recv_queue, self.send_queue)
                    if ready == 0 and blocked_call is None:
                        self.looks += 1
                        self.poller.serve()
                        ready = ready_of(wanted, self.recv_queue, self.send_queue)
                    if ready or not in_time or deadline <= now_ns():
                        return ready
                    if blocked_call is None:
                        blocked_call = BlockedCall(self)
                        wait_queue.enter(blocked_call)
                        if wanted == READY_BOTH:
                            self.writable.enter(blocked_call)
                    if wanted & READY_IN:
                        in_time = self._wait_or_yield(blocked_call, deadline)
                    else:
                        in_time = self._sleep(blocked_call, deadline)
                    if self.closed:
                        raise ClosedError(f"the {self._name()} socket was closed while a call waited")
            finally:
                if blocked_call is not None:
                    if wanted == READY_BOTH:
                        # This call may have had the wake-up of a call that sends.
                        self.writable.leave(blocked_call)
                        self.writable.pass_on()
                    self._stand_up(wait_queue, blocked_call)
        finally:
            self._leave()


cdef object rest_of(long long deadline):
    """Returns the seconds until a deadline; None for ever."""
    cdef long long left
    if deadline == FOR_EVER:
        return None
    left = deadline - now_ns()
    return left / 1e9 if left > 0 else 0


cdef int sleep_until(pollfd *fds, nfds_t count, long long deadline, bint naps, long long *nap) except -1:
    """Sleeps until a descriptor is readable or the time is up, and runs signal handlers; *naps*: on the main thread."""
    cdef timespec left
    cdef timespec *limit = NULL
    cdef long long now = now_ns()
    cdef long long until = deadline
    cdef int ready
    if naps and now + nap[0] < until:
        until = now + nap[0]
        nap[0] = min(2 * nap[0], <long long>MAX_SLEEP_NS)
    if until != FOR_EVER:
        until = max(until - now, <long long>0)
        left.tv_sec = until // 1000000000
        left.tv_nsec = until % 1000000000
        limit = &left
    with nogil:
        ready = ppoll(fds, count, limit, NULL)
    if ready < 0 and errno != EINTR:
        raise TransportError(errno, os.strerror(errno))
    PyErr_CheckSignals()
    return max(ready, 0)  # after a signal whose handler raises nothing: check again


def wait_for_any(
    list cores not None: list[SyncCore], int events, timeout: float | None, ReadableEvent room: ReadableEvent | None
) -> list[SyncCore]:
    """Waits until one of several sockets can receive or send a message.

    Args:
        cores: The sockets, each once.
        events: `POLL_IN`, `POLL_OUT` or both; validated by the caller.
        timeout: Seconds; `None` for ever; validated by the caller.
        room: Becomes readable when one of them may have got room; `None` if that does not matter.

    Returns:
        Ready sockets, in the order of *cores*; empty if the time was up.
    """
    cdef long long deadline = deadline_of(timeout)
    cdef long long nap = FIRST_SLEEP_NS
    cdef bint naps = False
    cdef Py_ssize_t i
    cdef int borrowed = 0
    cdef nfds_t count = 0
    cdef list watched = []
    cdef SyncCore core
    cdef pollfd *fds = <pollfd *>malloc((len(cores) + 1) * sizeof(pollfd))
    if fds == NULL:
        raise MemoryError()
    try:
        for core in cores:
            naps = core._fork_guard._main == PyThread_get_thread_ident()
            if events == READY_IN or (events & READY_IN and core.recv_queue is not None):
                watched.append(core)
                fds[count].fd = core._borrow(&borrowed)
                fds[count].events = POLLIN
                count += 1
        if room is not None:
            fds[count].fd = room.fd
            fds[count].events = POLLIN
            count += 1
        while True:
            if room is not None:
                room.show(False)  # before the check: a change after it shows
                found = cores
            else:
                found = []
                if sleep_until(fds, count, deadline, naps, &nap) > 0:
                    found = [watched[i] for i in range(len(watched)) if fds[i].revents]
            ready = [core for core in found if SyncCore.poll(core, 0, events)]
            # Another thread may have taken the message, or used the room.
            if ready or deadline <= now_ns():
                return ready
            if room is not None:
                sleep_until(fds, count, deadline, naps, &nap)
    finally:
        free(fds)
        for i in range(borrowed):
            (<SyncCore>watched[i])._give_back()
