"""The data phase of a connection: batches out, frames in, on a raw descriptor in an epoll set of its socket.

The engine owns handshake and lifecycle; it is told through the session: `on_command(body)`, `on_message(parts)`
(where no inlet takes messages) and `on_lost(reason)`, each on the thread that drives the descriptor.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from posix.unistd cimport close

from omq._core.batch cimport (
    BATCH_BYTES,
    BATCH_MESSAGES,
    FLUSH_BLOCKED,
    FLUSH_DONE,
    FLUSH_ERROR,
    FLUSH_NOTHING,
    SPARSE_NS,
    Batch,
    Part,
)
from omq._core.buffer cimport (
    COMMAND_LIMIT,
    FILL_EMPTY,
    FILL_EOF,
    FILL_NO_MEMORY,
    MESSAGE_CEILING,
    SCAN_BAD_HEADER,
    SCAN_COMMAND,
    SCAN_COMMAND_TOO_LARGE,
    SCAN_ENDLESS,
    SCAN_LARGE,
    SCAN_LARGE_DONE,
    SCAN_NOT_OPENED,
    SCAN_STARVED,
    SCAN_TOO_LARGE,
    SCAN_TOO_MANY_PARTS,
    Scan,
    Stream,
)
from omq._core.clock cimport now_ns
from omq._core.codec cimport FLAG_MORE
from omq._core.crypto cimport Session
from omq._core.flusher cimport Flusher
from omq._core.peer cimport TURN_BYTES, Inlet, Peer
from omq._core.pool cimport Pool
from omq._core.poller cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, Poller

import os

from omq._core.crypto import explain
from omq.errors import LocalProtocolError, RemoteProtocolError

cdef enum:
    SHORT_BURST = 3          # messages right behind one that was written through that are written through as well

cdef extern from "<sys/socket.h>" nogil:
    int shutdown(int, int)
    int SHUT_RDWR
    int SHUT_WR

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ

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
        flusher: Who writes what is left behind; None: the outlet, when the loop's turn ends.
        cipher: What seals and opens the traffic; None: it goes in the clear.
    """

    def __init__(self, session, int fd, Poller poller not None, Pool pool not None, Inlet inlet, recv_hwm,
                 max_size=None, max_parts=None, Flusher flusher=None, Session cipher=None, *,
                 ceiling=MESSAGE_CEILING):
        self.session = session
        self.fd = fd
        self.inlet = inlet
        self._poller = poller
        self._batch = Batch(pool)
        self._stream = Stream(pool, max_size, max_parts, ceiling)
        self._hwm = recv_hwm
        self._flusher = flusher
        self._batch.secure(cipher)
        self._stream.session = cipher
        self._batch.shared = flusher is not None
        self._batch.fd = fd
        self._batch.interest = EPOLLIN | EPOLLRDHUP
        self.writable = True

    def __dealloc__(self):
        if self.fd >= 0:
            if self._flusher is not None:
                self._flusher.forget(self._batch)
            close(self.fd)

    def start(self, bytes received not None):
        """Joins the epoll set; *received* are the bytes that came behind the handshake."""
        self._join()
        if received:
            self._stream.feed(PyBytes_AS_STRING(received), PyBytes_GET_SIZE(received))
            self.bytes_in += PyBytes_GET_SIZE(received)
            if self._digest() == 0:
                self._hand_over()

    def close(self):
        """Leaves the epoll set and closes the descriptor. What has arrived can still be taken."""
        self.lost = True
        if self.inlet is not None and self.inlet._growing is self:
            self.inlet._growing = None
        self.writable = False
        if self.fd >= 0:
            if self._flusher is not None:
                self._flusher.forget(self._batch)
            self._leave()
            self._batch.fd = -1
            close(self.fd)
            self.fd = -1
        self._batch.clear()

    def abandon(self):
        """In a forked child: closes the descriptor, and nothing else; the epoll set is the parent's."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    cdef int _join(self) except -1:
        """Joins the epoll set."""
        cdef Batch batch = self._batch
        batch.hold()
        try:
            batch.ticket = self._poller.join(self, self.fd, batch.interest)
            batch.poll_fd = self._poller.fd
            self._watched = True
        finally:
            batch.let_go()
        return 0

    cdef int _leave(self) except -1:
        """Leaves the epoll set."""
        if self._watched:
            self._watched = False
            self._batch.hold()
            self._batch.poll_fd = -1
            self._batch.let_go()
            self._poller.leave(self.fd, self._batch.ticket)
        return 0

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
        self._read_on(False)

    def resume(self):
        if self._stopped:
            self.refill()

    def set_grain(self, int grain):
        self._batch.grain = grain

    def set_recv_hwm(self, Py_ssize_t hwm):
        self._hwm = hwm
        if self._stopped and self.inlet is not None and (hwm == 0 or self._stream.complete < hwm):
            self.inlet._resume(self)

    @property
    def unsent_bytes(self):
        return self._batch.bytes

    @property
    def slabs(self):
        return self._stream.slabs()

    # ------------------------------------------------------------------ receiving

    cdef int on_events(self, unsigned int events) except -1:
        if self.lost:
            return 0
        if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self._ending = True
        if events & EPOLLOUT:
            self.flush()
        if not self.lost and (events & EPOLLIN or self._ending):
            self._read()
        if self._stopped and events & (EPOLLHUP | EPOLLERR) and not self.lost:
            # The kernel reports these whether they are asked for or not, again and again: `refill` comes back.
            self._leave()
            self._away = True
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
            if self._flusher is not None and self._stream._large != NULL:
                # Other threads may run while a large frame is copied; this socket is locked all the same, but the
                # pool is not: what `fill` would take from it is taken before.
                if self._stream._spare == NULL:
                    self._stream._spare = self._stream._pool.get()
                with nogil:
                    got = self._stream.fill(self.fd)
            else:
                got = self._stream.fill(self.fd)
            if got > 0:
                self.bytes_in += got
                turn -= got
                if self._digest():
                    return 0
                if self._filled():
                    break  # the next one finds memory of the next call
                if got < self._stream.asked and not self._ending:
                    break
                continue
            if got == FILL_EMPTY:
                break
            over = True
            if self._spent():
                reason = LocalProtocolError("the nonces of this connection are used up (RFC 26, The MESSAGE Command)")
            elif got == FILL_NO_MEMORY:
                reason = MemoryError("no memory for what the peer sends")
            elif got != FILL_EOF:
                reason = OSError(self._stream.error, os.strerror(self._stream.error))
            break
        self._hand_over()
        if over:
            self._lose(reason)
        elif self._hwm and self._stream.complete >= self._hwm and not self._stopped and self.inlet is not None:
            self._stopped = True
            self._read_on(False)
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
                self._begin_large()
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
            self._poller.call_back(self.session.on_command, body)
            if self.lost:
                # The command ended the connection; the messages before it stay readable.
                self.messages_in += stream.complete - before
                self._hand_over()
                return 1
        self.messages_in += stream.complete - before
        return 0

    def _complaint(self, int found):
        if found == SCAN_TOO_LARGE:
            return RemoteProtocolError(f"a message is larger than max_message_size={self._stream.max_size} bytes")
        if found == SCAN_ENDLESS:
            ceiling = self._stream.ceiling
            return RemoteProtocolError(f"a message goes on after {ceiling} bytes, and max_message_size does not allow more")
        if found == SCAN_TOO_MANY_PARTS:
            return RemoteProtocolError(f"a message has more than max_parts={self._stream.max_parts} parts")
        if found == SCAN_COMMAND_TOO_LARGE:
            return RemoteProtocolError(f"a command is larger than {COMMAND_LIMIT} bytes")
        if found == SCAN_NOT_OPENED:
            return RemoteProtocolError(explain(self._stream.found))
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
            self._poller.call_back(self.session.on_message, parts)
        return 0

    cdef int _lose(self, object reason) except -1:
        if not self.lost:
            self.lost = True
            self.writable = False
            # The end stays readable for ever: nobody is to wake up for it again.
            self._leave()
            if self.outlet is not None:
                self.outlet.lost(self)
            self._poller.call_back(self.session.on_lost, reason)
        return 0

    cdef int _read_on(self, bint on) except -1:
        """Has the epoll set watch for what arrives, or no longer."""
        cdef Batch batch = self._batch
        cdef unsigned int reading = EPOLLIN | EPOLLRDHUP
        batch.hold()
        batch.want(batch.interest | reading if on else batch.interest & ~reading)
        batch.let_go()
        return 0

    cdef int refill(self) except -1:
        if self.lost:
            return 0
        # Read at once: while the peer is ahead this saves the way through the event loop.
        self._stopped = False
        self._read()
        if not self._stopped and not self.lost:
            self._read_on(True)
            if self._away:
                self._away = False
                self._join()
        return 0

    cdef bint only_reads(self) noexcept:
        return self._batch.interest & (EPOLLIN | EPOLLOUT) == EPOLLIN

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

    cdef object take_alone(self):
        part = self._stream.take_short()
        if part is not None:
            return part
        return None if self._stream.head_more() else self._stream.take_part()

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        return self._stream.take_into(into, size)

    cdef bint aim(self, char *into, Py_ssize_t size) except -1:
        return self._stream.aim(into, size)

    cdef int withdraw(self) except -1:
        try:
            self._stream.withdraw()
        except MemoryError as error:
            self._lose(error)
        return 0

    cdef int _begin_large(self) except -1:
        """A large frame begins: in the memory of a call that waits for it, if there is one, or in its own."""
        cdef Inlet inlet = self.inlet
        cdef Stream stream = self._stream
        if inlet is None:
            return stream.start_large()
        inlet._growing = self
        if inlet._target == NULL or inlet._aiming is not None or inlet._head is not None:
            return stream.start_large()
        stream.aim(inlet._target, inlet._target_size)
        stream.start_large()
        if stream._aimed != NULL:
            inlet._aiming = self
        else:
            stream.withdraw()
        return 0

    cdef bint _filled(self) noexcept:
        """A large frame stands whole in the memory of the call that waits for it."""
        return self._stream._aimed != NULL and self._stream._large == NULL

    cdef int skip(self) except -1:
        return self._stream.skip()

    # ------------------------------------------------------------------ sending

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Batch batch = self._batch
        cdef bint first
        cdef int status
        cdef Py_ssize_t i
        if self._broken:
            return 0
        batch.hold()
        if count == 1 and batch.bytes and batch.append(parts):
            # The common case while messages gather: nothing to decide.
            if (batch.bytes < BATCH_BYTES and batch.messages < BATCH_MESSAGES
                    and not (batch.stuck or batch.failed or batch._ndone)):
                batch.let_go()
                self.messages_out += 1
                return 0
            count = 0
        try:
            first = batch.bytes == 0
            if count:
                for i in range(count - 1):
                    batch.put(parts + i, FLAG_MORE)
                batch.put(parts + count - 1, 0)
                batch.end_message()
            self.messages_out += 1
            status = self._decide(first)
        finally:
            batch.let_go()
        return self._after(status)

    cdef int send_encoded(self, const char *data, Py_ssize_t size, const Part *parts, Py_ssize_t count) except -1:
        cdef Batch batch = self._batch
        cdef bint first
        cdef int status
        if batch.session is not None:
            return self.send(parts, count)  # nobody else can open what is sealed for this peer
        if self._broken:
            return 0
        batch.hold()
        try:
            first = batch.bytes == 0
            batch.copy(data, size)
            batch.end_message()
            self.messages_out += 1
            status = self._decide(first)
        finally:
            batch.let_go()
        return self._after(status)

    cdef Py_ssize_t send_run(self, list messages, Py_ssize_t start, Py_ssize_t limit) except -1:
        cdef Batch batch = self._batch
        cdef Part part
        cdef bint first
        cdef int status
        cdef Py_ssize_t at = start
        cdef Py_ssize_t end = min(<Py_ssize_t>len(messages), start + limit)
        if self._broken or self._blocked:
            return 0
        batch.hold()
        try:
            first = batch.bytes == 0
            while at < end and batch.bytes < BATCH_BYTES and batch.messages < BATCH_MESSAGES:
                message = messages[at]
                if type(message) is not bytes:
                    break
                part.data = PyBytes_AS_STRING(message)
                part.size = PyBytes_GET_SIZE(message)
                part.owner = <PyObject *>message
                batch.put(&part, 0)
                batch.end_message()
                at += 1
            self.messages_out += at - start
            status = self._decide(first) if at > start else FLUSH_NOTHING
        finally:
            batch.let_go()
        self._after(status)
        return at - start

    cdef int _decide(self, bint first) except? -1:
        """Whole messages stand in the batch, which is held: write them now, or let them gather. FLUSH_*."""
        cdef Batch batch = self._batch
        cdef int status = FLUSH_NOTHING
        cdef long long now
        if self._blocked:
            pass
        elif batch.stuck or batch.failed:
            status = FLUSH_ERROR if batch.failed else FLUSH_BLOCKED
        elif batch.bytes >= BATCH_BYTES or batch.messages >= BATCH_MESSAGES or batch._foreign:
            self._dense = True
            if self._flusher is not None:
                batch.last_write = now_ns()
            status = self._push()
        elif first:
            # Idle for a while: write through. Otherwise messages gather, until the turn ends or the flusher comes.
            if self.outlet is None or not (self._dense or self.outlet.gathers):
                now = now_ns()
                if self.outlet is None or now - batch.last_write > SPARSE_NS:
                    self._short_burst = SHORT_BURST
                    batch.last_write = now
                    status = self._push()
                elif self._short_burst > 0 and self._flusher is not None:
                    # So far it may be a burst of a few messages, after which the caller goes off to compute: for the
                    # flusher another core may have to wake up, which takes longer than these system calls.
                    self._short_burst -= 1
                    batch.last_write = now
                    status = self._push()
            if status == FLUSH_NOTHING:
                if self._flusher is not None and not self.outlet.draining:
                    self._dense = False
                    self._flusher.leave(batch)
                    self.outlet.note(self)
                else:
                    self.outlet.defer(self)
        if batch._foreign:
            batch.adopt()
        return status

    cdef int _push(self) noexcept:
        """Hands the batch, which is held, to the kernel. FLUSH_*."""
        cdef Batch batch = self._batch
        cdef int status
        if self._flusher is not None and batch.bytes > 2 * BATCH_BYTES:
            with nogil:
                status = batch.flush(self.fd)
        else:
            status = batch.flush(self.fd)
        if status == FLUSH_DONE:
            batch.stuck = False
            batch.want(batch.interest & ~EPOLLOUT)
        elif status == FLUSH_BLOCKED:
            batch.want(batch.interest | EPOLLOUT)
        return status

    cdef int _after(self, int status) except -1:
        """What a write has led to; the batch is let go of."""
        if self._batch._ndone or status == FLUSH_DONE:
            self._batch.reap()
        if status == FLUSH_NOTHING:
            return 0
        if status == FLUSH_DONE:
            if self._blocked:
                self._blocked = False
                self.writable = True
                if self.outlet is not None:
                    self.outlet.opened(self)
        elif status == FLUSH_BLOCKED:
            self._blocked = True
            self.writable = False
            if self.outlet is not None:
                self.outlet.blocked(self)
        else:
            # The peer is gone for writing. What it sent before is still to be read, so the end is reported
            # by the reading side; the batch in flight is lost.
            self._broken = True
            self.writable = False
            self._batch.clear()
            self._batch.hold()
            self._batch.want(self._batch.interest & ~EPOLLOUT)
            self._batch.let_go()
            if self.outlet is not None:
                self.outlet.remove(self)
            if self._spent():
                shutdown(self.fd, SHUT_RDWR)  # the reading side finds the end, and says why
        return 0

    cdef bint _spent(self) noexcept:
        """No nonce is left, so nothing can be sent any more."""
        return self._batch.session is not None and self._batch.session.sent == <uint64_t>-1

    cpdef int control(self, bytes frames) except -1:
        cdef int status = FLUSH_NOTHING
        if self.lost or self._broken:
            return 0
        self._batch.hold()
        try:
            self._batch.put_frames(PyBytes_AS_STRING(frames), PyBytes_GET_SIZE(frames))
            if not self._blocked:
                status = self._push()
        finally:
            self._batch.let_go()
        return self._after(status)

    cdef Py_ssize_t pending(self) noexcept:
        return self._batch.messages

    cdef long long sent_bytes(self) noexcept:
        return self._batch.total - self._batch.bytes

    cdef int flush(self) except -1:
        cdef int status = FLUSH_NOTHING
        if self.fd < 0 or self._broken:
            return 0
        self._batch.hold()
        if self._batch.bytes or self._blocked or self._batch.stuck:
            status = self._push()
        self._batch.let_go()
        return self._after(status)

    cdef int end_turn(self) except -1:
        if self._batch.bytes and not self._blocked:
            self._batch.last_write = now_ns()
            self.flush()
        self._dense = False
        return 0
