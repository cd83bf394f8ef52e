"""The data phase of a connection: batches out, frames in, on a raw descriptor in an epoll set of its socket.

The engine owns handshake and lifecycle; it is told through the session: `on_command(body)`, `on_message(parts)`
(where no inlet takes messages) and `on_lost(reason)`, each on the thread that drives the descriptor.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, errno
from libc.string cimport memset
from posix.unistd cimport close

from omq._core.batch cimport BATCH_BYTES, BATCH_MESSAGES, FLUSH_BLOCKED, FLUSH_DONE, FLUSH_ERROR, Batch, Part
from omq._core.buffer cimport (
    COMMAND_LIMIT,
    FILL_EMPTY,
    FILL_EOF,
    FILL_NO_MEMORY,
    SCAN_BAD_HEADER,
    SCAN_COMMAND,
    SCAN_COMMAND_TOO_LARGE,
    SCAN_LARGE,
    SCAN_LARGE_DONE,
    SCAN_STARVED,
    SCAN_TOO_LARGE,
    SCAN_TOO_MANY_PARTS,
    Pool,
    Scan,
    Stream,
)
from omq._core.clock cimport now_ns
from omq._core.codec cimport FLAG_MORE
from omq._core.peer cimport TURN_BYTES, Inlet, Peer, Turn

import os

from omq.errors import RemoteProtocolError

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data:
        void *ptr
    struct epoll_event:
        unsigned int events
        epoll_data data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    unsigned int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP

cdef extern from "<sys/socket.h>" nogil:
    int shutdown(int, int)
    int SHUT_WR

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ

cdef enum:
    EVENTS = 64              # events taken from the kernel at once


@cython.final
cdef class Poller:
    """The epoll set of one socket: every connection in its data phase."""

    def __cinit__(self, Turn turn=None):
        self._turn = turn
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def close(self):
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    cdef int watch(self, Connection connection, bint fresh) except -1:
        cdef epoll_event event
        event.events = connection._interest
        event.data.ptr = <void *>connection
        if epoll_ctl(self.fd, EPOLL_CTL_ADD if fresh else EPOLL_CTL_MOD, connection.fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        if fresh:
            self._count += 1
            self._only = connection if self._count == 1 else None
        return 0

    cdef int forget(self, Connection connection) except -1:
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        self._count -= 1
        self._only = None
        if self.fd >= 0 and epoll_ctl(self.fd, EPOLL_CTL_DEL, connection.fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    def dispatch(self):
        """Handles what is ready, without waiting, then runs whoever that woke."""
        if self._turn is None:
            self._serve()
            return
        self._turn.open = True
        try:
            self._serve()
        finally:
            self._turn.open = False
            self._turn.finish()

    cdef int _serve(self) except -1:
        cdef epoll_event events[EVENTS]
        cdef PyObject *connections[EVENTS]
        cdef Connection only
        cdef int i, n
        if self.fd < 0:
            return 0
        if self._count == 1 and self._only is not None and not self._only._interest & EPOLLOUT:
            # A single connection that only reads: the event can be nothing else, and a read finds out what it is.
            only = self._only
            if only._interest & EPOLLIN:
                return only.on_events(EPOLLIN)
        n = epoll_wait(self.fd, events, EVENTS, 0)
        if n < 0:
            if errno == EINTR:
                return 0
            raise OSError(errno, os.strerror(errno))
        # A handler may end any connection, also one that has an event in this round: hold them all.
        for i in range(n):
            connections[i] = <PyObject *>events[i].data.ptr
            Py_INCREF(<object>connections[i])
        try:
            for i in range(n):
                (<Connection>connections[i]).on_events(events[i].events)
        finally:
            for i in range(n):
                Py_DECREF(<object>connections[i])
        return 0


@cython.final
cdef class Connection(Peer):
    """A connected descriptor after its handshake.

    Args:
        session: The engine's owner; gets `on_command`, `on_message` and `on_lost`.
        fd: A non-blocking stream descriptor; owned from here on.
        poller: The epoll set of its socket.
        pool: Where blocks come from.
        inlet: Where its messages are taken; None gives them to `session.on_message`.
        recv_hwm: Messages; 0 for no bound.
    """

    def __init__(self, session, int fd, Poller poller not None, Pool pool not None, Inlet inlet, recv_hwm,
                 max_size=None, max_parts=None):
        self.session = session
        self.fd = fd
        self.inlet = inlet
        self._poller = poller
        self._batch = Batch(pool)
        self._stream = Stream(pool, max_size, max_parts)
        self._hwm = recv_hwm
        self._interest = EPOLLIN | EPOLLRDHUP
        self.writable = True

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def start(self, bytes received not None):
        """Joins the epoll set; *received* are the bytes that came behind the handshake."""
        self._poller.watch(self, True)
        self._watched = True
        if received:
            self._stream.feed(PyBytes_AS_STRING(received), PyBytes_GET_SIZE(received))
            self.bytes_in += PyBytes_GET_SIZE(received)
            if self._digest() == 0:
                self._hand_over()

    def close(self):
        """Leaves the epoll set and closes the descriptor. What has arrived can still be taken."""
        self.lost = True
        self.writable = False
        if self.fd >= 0:
            if self._watched:
                self._poller.forget(self)
            close(self.fd)
            self.fd = -1
        self._batch.clear()

    def say_goodbye(self):
        """Ends our side of the stream and throws away what the peer still sends.

        Closing a descriptor with unread bytes resets the connection, and a reset destroys what the peer's kernel
        has not got yet (RFC 1122, 4.2.2.13): so read on until it has everything.

        Returns:
            Whether the peer's kernel has everything.
        """
        cdef int waiting = 0
        if self.fd < 0 or self._broken:
            return True
        if not self._parting:
            self._parting = True
            shutdown(self.fd, SHUT_WR)
            self.inlet = None
            self._hwm = 0
            self.refill()
            if self.fd < 0:
                return True
        return ioctl(self.fd, SIOCOUTQ, &waiting) < 0 or waiting == 0

    def pause(self):
        self._stopped = True
        self._want(self._interest & ~(EPOLLIN | EPOLLRDHUP))

    def resume(self):
        self.refill()

    def set_grain(self, int grain):
        self._batch.grain = grain

    def set_recv_hwm(self, Py_ssize_t hwm):
        self._hwm = hwm

    @property
    def unsent(self):
        """Messages that the kernel does not have."""
        return self._batch.messages

    @property
    def unsent_bytes(self):
        return self._batch.bytes

    # ------------------------------------------------------------------ receiving

    cdef int on_events(self, unsigned int events) except -1:
        if self.lost:
            return 0
        if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self._ending = True
        if events & EPOLLOUT and self._blocked:
            self.flush()
        if not self.lost and (events & EPOLLIN or self._ending):
            self._read()
        return 0

    cdef int _read(self) except -1:
        """Reads what is there, up to one turn's worth, and hands over what is whole."""
        cdef Py_ssize_t got
        cdef Py_ssize_t turn = TURN_BYTES
        cdef bint over = False
        reason = None
        while turn > 0:
            if self._hwm and self._stream.complete >= self._hwm:
                break
            got = self._stream.fill(self.fd)
            if got > 0:
                self.bytes_in += got
                turn -= got
                if self._digest():
                    return 0
                if got < self._stream.asked and not self._ending:
                    break
                continue
            if got == FILL_EMPTY:
                break
            over = True
            if got == FILL_NO_MEMORY:
                reason = MemoryError("no memory for what the peer sends")
            elif got != FILL_EOF:
                reason = OSError(self._stream.error, os.strerror(self._stream.error))
            break
        self._hand_over()
        if over:
            self._lose(reason)
        elif self._hwm and self._stream.complete >= self._hwm and not self._stopped and self.inlet is not None:
            self._stopped = True
            self._want(self._interest & ~(EPOLLIN | EPOLLRDHUP))
            self.inlet.paused(self)
        return 0

    cdef int _digest(self) except -1:
        """Looks at what has arrived, handles commands; 1 if the connection is over."""
        cdef Stream stream = self._stream
        cdef Py_ssize_t before = stream.complete
        cdef Scan found
        while True:
            found = stream.scan()
            if found == SCAN_STARVED:
                break
            if found == SCAN_COMMAND:
                body = PyBytes_FromStringAndSize(stream.command_data, stream.command_size)
            elif found == SCAN_LARGE:
                stream.start_large()
                continue
            elif found == SCAN_LARGE_DONE:
                body = stream.finish_large()
                if body is None:
                    continue
            else:
                self.messages_in += stream.complete - before
                self._hand_over()
                self._lose(self._complaint(found))
                return 1
            self.session.on_command(body)
            if self.lost:
                return 1
        self.messages_in += stream.complete - before
        return 0

    def _complaint(self, int found):
        if found == SCAN_TOO_LARGE:
            return RemoteProtocolError(f"a part is larger than max_message_size={self._stream.max_size} bytes")
        if found == SCAN_TOO_MANY_PARTS:
            return RemoteProtocolError(f"a message has more than max_parts={self._stream.max_parts} parts")
        if found == SCAN_COMMAND_TOO_LARGE:
            return RemoteProtocolError(f"a command is larger than {COMMAND_LIMIT} bytes")
        return RemoteProtocolError("bytes that are no ZMTP frame (RFC 23, Framing)")

    cdef int _hand_over(self) except -1:
        """Makes whole messages known to whoever takes them."""
        if self._stream.complete == 0:
            return 0
        if self.inlet is not None:
            self.inlet.arrived(self)
            return 0
        while self._stream.complete and not self.lost:
            parts = []
            while True:
                parts.append(self._stream.take_part())
                if not self._stream.more:
                    break
            self.session.on_message(parts)
        return 0

    cdef int _lose(self, object reason) except -1:
        if not self.lost:
            self.lost = True
            self.writable = False
            self.session.on_lost(reason)
        return 0

    cdef int _want(self, unsigned int interest) except -1:
        if interest != self._interest and self.fd >= 0:
            self._interest = interest
            if not self._watched:
                return 0
            self._poller.watch(self, False)
        return 0

    cdef int refill(self) except -1:
        if self.lost:
            return 0
        # Read at once: while the peer is ahead this saves the way through the event loop.
        self._stopped = False
        self._read()
        if not self._stopped and not self.lost:
            self._want(self._interest | EPOLLIN | EPOLLRDHUP)
        return 0

    cdef Py_ssize_t ready(self) noexcept:
        return self._stream.complete

    cdef bint head_more(self) noexcept:
        return self._stream.head_more()

    cdef const char *peek(self, Py_ssize_t *size) except NULL:
        return self._stream.peek(size)

    cdef object take_part(self):
        part = self._stream.take_part()
        self.more = self._stream.more
        return part

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        return self._stream.take_into(into, size)

    cdef int skip(self) except -1:
        return self._stream.skip()

    # ------------------------------------------------------------------ sending

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Batch batch = self._batch
        cdef bint first = batch.bytes == 0
        cdef Py_ssize_t i
        if self._broken:
            return 0
        for i in range(count - 1):
            batch.put(parts + i, FLAG_MORE)
        batch.put(parts + count - 1, 0)
        return self._accepted(first)

    cdef int send_encoded(self, const char *data, Py_ssize_t size, const Part *parts, Py_ssize_t count) except -1:
        cdef bint first = self._batch.bytes == 0
        if self._broken:
            return 0
        self._batch.copy(data, size)
        return self._accepted(first)

    cdef int _accepted(self, bint first) except -1:
        """A whole message stands in the batch: write it now, or let it gather."""
        cdef Batch batch = self._batch
        cdef long long now
        batch.end_message()
        self.messages_out += 1
        if not self._blocked:
            if batch.bytes >= BATCH_BYTES or batch.messages >= BATCH_MESSAGES or batch._foreign:
                self._dense = True
                self.flush()
            elif first:
                # Idle for a while: write through. Otherwise messages gather until the turn ends.
                if not self._dense:
                    now = now_ns()
                    if now - self._last_write > SPARSE_NS:
                        self._last_write = now
                        self.flush()
                        return 0
                if self.outlet is None:
                    self.flush()
                else:
                    self.outlet.defer(self)
        if batch._foreign:
            batch.adopt()
        return 0

    cpdef int control(self, bytes frames) except -1:
        if self.lost or self._broken:
            return 0
        self._batch.copy(PyBytes_AS_STRING(frames), PyBytes_GET_SIZE(frames))
        if not self._blocked:
            self.flush()
        return 0

    cdef Py_ssize_t pending(self) noexcept:
        return self._batch.messages

    cdef int flush(self) except -1:
        cdef Batch batch = self._batch
        cdef Py_ssize_t before = batch.bytes
        cdef int status
        if before == 0 or self.fd < 0 or self._broken:
            return 0
        status = batch.flush(self.fd)
        self.bytes_out += before - batch.bytes
        batch.reap()
        return self._written(status)

    cdef int _written(self, int status) except -1:
        if status == FLUSH_DONE:
            if self._blocked:
                self._blocked = False
                self.writable = True
                self._want(self._interest & ~EPOLLOUT)
                if self.outlet is not None:
                    self.outlet.opened(self)
        elif status == FLUSH_BLOCKED:
            if not self._blocked:
                self._blocked = True
                self.writable = False
                self._want(self._interest | EPOLLOUT)
            if self.outlet is not None:
                self.outlet.blocked(self)
        else:
            # The peer is gone for writing. What it sent before is still to be read, so the end is reported
            # by the reading side; the batch in flight is lost.
            self._broken = True
            self.writable = False
            self._batch.clear()
            self._want(self._interest & ~EPOLLOUT)
            if self.outlet is not None:
                self.outlet.remove(self)
        return 0

    cdef int end_turn(self) except -1:
        if self._batch.bytes and not self._blocked:
            self._last_write = now_ns()
            self.flush()
        self._dense = False
        return 0
