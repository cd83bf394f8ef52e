"""The receiving half of a connection: it reads its descriptor, handles commands and hands over whole messages."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOMEM, EPIPE, errno
from libc.string cimport memcmp, memcpy

from omq._core.clock cimport now_ns
from omq._core.kernel cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, NO_FD, recv
from omq._core.wire.send_buffer cimport Part, SendBuffer
from omq._core.wire.framing cimport PING_BYTES, PING_CONTEXT_BYTES, SHORT_HEADER_BYTES
from omq._core.wire.frame_reader cimport (
    FILL_EMPTY,
    FILL_EOF,
    FILL_NO_MEMORY,
    SCAN_COMMAND,
    SCAN_LARGE,
    SCAN_LARGE_DONE,
    SCAN_OWN,
    SCAN_STARVED,
    Run,
    Scan,
    FrameReader,
)
from omq._core.link.command_backlog cimport CROWDED, can_reset, outlook, set_low_water
from omq._core.link.background cimport Background, WatchedSet
from omq._core.link.flusher cimport Flusher
from omq._core.link.read_ahead cimport ReadAhead
from omq._core.lock cimport load, store
from omq._core.link.poller cimport Poller
from omq._core.queues.peer cimport TURN_BYTES, TURN_MESSAGES, RecvQueue, Peer

cdef enum:
    PONG_FRAME_BYTES = 7               # bytes of a PONG's frame without its context
    MAX_UNSENT_BYTES = 65536           # unsent bytes above which nothing is answered: the peer does not read
    MAX_UNHANDLED_COMMANDS = 64        # unhandled commands above which the session gets no more
    DISCARD_BYTES = 32768              # bytes dropped at once
    MIN_LOW_WATER_BYTES = 131072       # missing bytes of a large frame from which the kernel waits for more than a few
    MAX_LOW_WATER_BYTES = 524288       # bytes that it waits for
    MAX_READ_AHEAD_BYTES = 1073741824  # bytes that are read ahead of an owner that is away, whatever recv_hwm is
    MAX_COMMANDS_AHEAD_BYTES = 65536   # likewise, where the peer's type sends no messages

import os


cdef class Receiver(Peer):
    """A descriptor in the epoll set of its socket, for reading.

    `Connection` adds the sending half. This class calls only `_look_back` and methods of `Peer` (`control`, `flush`).

    Attributes:
        fd: The descriptor; -1 once closed.
    """

    def __cinit__(self, *_, **__):
        self.fd = NO_FD

    cdef int _set_up(self, object session, int fd, Poller poller, SendBuffer send_buffer, FrameReader frame_reader,
                     RecvQueue recv_queue, Py_ssize_t hwm, Flusher flusher, Background background) except -1:
        """Sets the objects that it reads with, and those that it reads for."""
        self.session = session
        self.fd = send_buffer.fd = fd
        self._poller = poller
        self._send_buffer = send_buffer
        self._frame_reader = frame_reader
        self.recv_queue = recv_queue
        self._hwm = hwm
        self._flusher = flusher
        self._background = background
        self._resets = can_reset(fd)
        send_buffer.interest = EPOLLIN | EPOLLRDHUP
        return 0

    # ------------------------------------------------------------------ the epoll set

    cdef int _join(self) except -1:
        """Joins the epoll set."""
        cdef SendBuffer send_buffer = self._send_buffer
        send_buffer.hold()
        try:
            send_buffer.ticket = self._poller.join(self, self.fd, send_buffer.interest)
            send_buffer.poll_fd = self._poller.fd
            self._watched = True
        finally:
            send_buffer.let_go()
        if self._background is not None and not self._parting:
            self._begin_read_ahead()
        return 0

    cdef int _begin_read_ahead(self) except -1:
        """Makes the background thread read and write here while the owner is away, until `_end_read_ahead`."""
        cdef WatchedSet watched = self._poller.watched_by(self._background)
        cdef ReadAhead read_ahead = self._read_ahead
        if watched is None:
            return 0
        if read_ahead is None:
            read_ahead = ReadAhead(self._send_buffer, self._resets)
            read_ahead.hwm = self._hwm
            read_ahead.limit = MAX_READ_AHEAD_BYTES if self.recv_queue is not None else MAX_COMMANDS_AHEAD_BYTES
            read_ahead.max_size = self._frame_reader.max_size
            read_ahead.reset(self._frame_reader)
            self._read_ahead = read_ahead
        self._background.attach(watched, self._send_buffer.ticket, read_ahead)
        self._attached_to = watched
        return 0

    cdef int _end_read_ahead(self) except -1:
        """Detaches the connection from the background thread, which does not touch it afterwards."""
        if self._attached_to is not None:
            self._background.detach(self._attached_to, self._send_buffer.ticket, self._read_ahead)
            self._attached_to = None
        return 0

    cdef int _leave(self) except -1:
        """Leaves the epoll set."""
        if self._watched:
            self._watched = False
            self._end_read_ahead()
            self._send_buffer.hold()
            self._send_buffer.poll_fd = -1
            self._send_buffer.let_go()
            self._poller.leave(self.fd, self._send_buffer.ticket)
        return 0

    # ------------------------------------------------------------------ pausing

    def pause(self):
        self._stopped = self._behind = True
        self._read_on(False)

    def resume(self):
        if self._stopped:
            self.refill()

    def set_recv_hwm(self, Py_ssize_t hwm):
        self._hwm = hwm
        if self._read_ahead is not None:
            store(&self._read_ahead.hwm, hwm)
        if self._stopped and self.recv_queue is not None and (hwm == 0 or self._frame_reader.complete < hwm):
            self.recv_queue._resume(self)

    @property
    def slabs(self) -> int:
        """Blocks of memory that hold received bytes; 0 while no message waits. For tests."""
        return self._frame_reader.slabs()

    # ------------------------------------------------------------------ reading

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
            # The kernel reports these repeatedly, requested or not: `refill` joins the set again.
            self._leave()
            self._away = True
        return 0

    cdef int _read(self) except -1:
        """Reads, up to one turn's worth, and hands over whole messages."""
        cdef ReadAhead read_ahead = self._read_ahead
        cdef long long before = self._from_kernel
        cdef Py_ssize_t unanswered
        cdef char context[PING_CONTEXT_BYTES]
        if read_ahead is None or self._reading:
            return self._take_in()
        read_ahead.begin()
        self._reading = True
        try:
            return self._take_in()
        finally:
            self._reading = False
            if self._from_kernel != before:
                read_ahead.taken_in(self._from_kernel - before)
                read_ahead.read = now_ns()
                read_ahead.reset(self._frame_reader)
            else:
                read_ahead.waiting = self._frame_reader.complete
            read_ahead.behind = self._behind
            read_ahead.crowded = now_ns() if self._behind else 0
            unanswered = read_ahead.unanswered
            read_ahead.unanswered = -1
            if unanswered > 0:
                memcpy(context, read_ahead._context, unanswered)  # another PING may come once the flag is free
            read_ahead.leave()
            if self.has_ahead() and self._attached_to is not None:
                self._attached_to.signal()  # this turn is over, and nothing else shows that more bytes wait
            if unanswered >= 0 and not self.lost:
                self._pong(context, unanswered)

    cdef int _take_in(self) except -1:
        cdef Py_ssize_t got, before
        cdef Py_ssize_t turn = TURN_BYTES
        cdef bint over = False
        cdef bint caught_up = False
        reason = None
        if self._parting:
            return self._discard()
        if self._poller._bell is None:
            self.untold = 0
        while turn > 0 or self._passes_over():
            if turn <= 0:
                self._hand_over()
                turn = TURN_BYTES
            if self._full():
                break
            if self._read_ahead is not None and self._read_ahead.bytes:
                before = self._frame_reader.complete
                got = self._read_ahead.pass_on(self._frame_reader)
                if got > 0:
                    self.bytes_in += got
                    turn -= got
                    over = self._digest()
                    self._read_ahead.messages -= self._frame_reader.complete - before
                    if over:
                        return 0
                    if self._filled():
                        break
                    continue
            elif self._flusher is not None and self._frame_reader._large != NULL:
                # Other threads may run while a large frame is copied. The socket is locked here but the pool is not,
                # so take the spare block before releasing the GIL.
                if self._frame_reader._spare == NULL:
                    self._frame_reader._spare = self._frame_reader._pool.get()
                with nogil:
                    got = self._frame_reader.fill(self.fd)
            else:
                got = self._frame_reader.fill(self.fd)
            if got > 0:
                self.bytes_in += got
                self._from_kernel += got
                turn -= got
                if self._digest():
                    return 0
                if self._filled():
                    break  # the next message is read into the memory of the next call
                if got < self._frame_reader.asked and not self._ending:
                    caught_up = True
                    break
                continue
            if got == FILL_EMPTY:
                caught_up = True
                break
            over = True
            if self._frame_reader.codec is not None:
                reason = self._frame_reader.codec.exhausted()
            if reason is not None:
                pass
            elif got == FILL_NO_MEMORY:
                reason = MemoryError("no memory for the bytes that the peer sends")
            elif self._send_buffer.error == ENOMEM:
                reason = MemoryError("no memory for the bytes that are sent to the peer")
            elif self._send_buffer.failed and self._send_buffer.error not in (0, EPIPE, ECONNRESET):
                reason = OSError(self._send_buffer.error, os.strerror(self._send_buffer.error))  # not the peer's fault
            elif got != FILL_EOF:
                reason = OSError(self._frame_reader.error, os.strerror(self._frame_reader.error))
            break
        if self._frame_reader._large != NULL or self._send_buffer.low_water:
            self._set_low_water()
        self._hand_over()
        if over and reason is None:
            self._settle()
        elif over:
            self._lose(reason)
        elif self._full() and not self._stopped and self.recv_queue is not None:
            self._stopped = True
            self._behind = self._behind or not caught_up
            self._read_on(False)
            self.recv_queue.paused(self)
        if not over:
            self._look_back(caught_up)
        return 0

    cdef void _set_low_water(self) noexcept:
        """Makes the kernel report the rest of a large frame in a few steps: each report wakes a thread."""
        cdef FrameReader frame_reader = self._frame_reader
        cdef long long missing = 0
        if not self._resets:
            return  # a unix socket does not have that
        if frame_reader._large != NULL:
            missing = <long long>frame_reader._size - frame_reader._have
        set_low_water(self.fd, &self._send_buffer.low_water,
                      <int>min(missing, <long long>MAX_LOW_WATER_BYTES) if missing >= MIN_LOW_WATER_BYTES else 0)

    cdef bint _passes_over(self) noexcept:
        """Returns whether the bytes read ahead hold older messages than the one that counts."""
        return (self.recv_queue is not None and self.recv_queue.newest_only and self._read_ahead is not None
                and self._read_ahead.bytes > 0)

    cdef bint _full(self) noexcept:
        """Returns whether enough messages wait to stop reading."""
        return self._hwm and self._frame_reader.complete >= self._hwm and self.bytes_in >= self._brim

    cdef int _discard(self) except -1:
        """Reads and drops bytes, up to one turn's worth."""
        cdef char scratch[DISCARD_BYTES]
        cdef Py_ssize_t got
        cdef Py_ssize_t turn = TURN_BYTES
        while turn > 0 and self.fd >= 0:
            got = recv(self.fd, scratch, DISCARD_BYTES, MSG_DONTWAIT)
            if got > 0:
                self.bytes_in += got
                turn -= got
            elif got == 0:
                return self._lose(None)
            elif errno == EAGAIN:
                break
            elif errno != EINTR:
                return self._lose(OSError(errno, os.strerror(errno)))
        return 0

    cdef int _look_back(self, bint caught_up) except -1:
        """Sends commands that wait for unread bytes: more was read, and perhaps everything that had arrived."""
        return 0

    cdef int _digest(self) except -1:
        """Parses the bytes that have arrived and handles commands; returns 1 if the connection is over."""
        cdef FrameReader frame_reader = self._frame_reader
        cdef Py_ssize_t before = frame_reader.complete
        cdef Scan found
        while True:
            found = frame_reader.scan()
            if found == SCAN_STARVED:
                break
            if found == SCAN_COMMAND:
                body = None
                if not self._heed(frame_reader.command_data, frame_reader.command_size):
                    body = PyBytes_FromStringAndSize(frame_reader.command_data, frame_reader.command_size)
            elif found == SCAN_LARGE:
                self._begin_large()
                continue
            elif found == SCAN_OWN:
                body = None
                answer = frame_reader.codec.answer()
                if answer is not None and self._send_buffer.bytes < MAX_UNSENT_BYTES:
                    self.control(answer)
            elif found == SCAN_LARGE_DONE:
                body = frame_reader.finish_large()
                if body is not None and self._heed(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)):
                    body = None
            else:
                self.messages_in += frame_reader.complete - before
                self._hand_over()
                if frame_reader.codec is not None and not self.lost:
                    answer = frame_reader.codec.closing_frame(True)
                    if answer is not None:
                        self.control(answer)
                self._lose(frame_reader.complaint(found))
                return 1
            if body is not None and self.untold < MAX_UNHANDLED_COMMANDS:
                # A peer that sends commands faster than that must not fill the memory or keep the loop from its work.
                # A session that gets them later counts them down; otherwise they count for this turn.
                self.untold += 1
                self._poller.call_back(self.session.on_command, body)
            if self.lost:
                # The command ended the connection; the messages before it stay readable.
                self.messages_in += frame_reader.complete - before
                self._hand_over()
                return 1
        self.messages_in += frame_reader.complete - before
        return 0

    cdef bint _heed(self, const char *data, Py_ssize_t size) except -1:
        """Answers a PING, or passes another command to the send queue; False: the session must handle it."""
        cdef int ttl
        if PING_BYTES <= size <= PING_BYTES + PING_CONTEXT_BYTES and memcmp(data, b"\4PING", 5) == 0:
            ttl = (<int><unsigned char>data[5]) << 8 | <unsigned char>data[6]
            self.pings += 1
            if self._read_ahead is not None and self._read_ahead.ahead > 0:
                self._read_ahead.ahead -= 1  # this PING was answered before it was read
            elif self._send_buffer.bytes < MAX_UNSENT_BYTES:
                if self._read_ahead is not None:
                    self._read_ahead.note_ping(now_ns())
                self._pong(data + PING_BYTES, size - PING_BYTES)
            if ttl == self._ttl:
                return True
            self._ttl = ttl
            return False  # the session decides how long the peer may be silent
        if self.send_queue is not None and self.send_queue.heeds and self._pass_on(data, size):
            return True
        return 5 <= size <= 5 + PING_CONTEXT_BYTES and memcmp(data, b"\4PONG", 5) == 0

    cdef int _pong(self, const char *context, Py_ssize_t size) except -1:
        """Answers a PING with its context (RFC 37, Connection Heartbeating)."""
        cdef char frame[PONG_FRAME_BYTES + PING_CONTEXT_BYTES]
        memcpy(frame, b"\4\0\4PONG", PONG_FRAME_BYTES)
        memcpy(frame + PONG_FRAME_BYTES, context, size)
        frame[1] = <char>(PONG_FRAME_BYTES - SHORT_HEADER_BYTES + size)
        return self.control(PyBytes_FromStringAndSize(frame, PONG_FRAME_BYTES + size))

    cdef bint _pass_on(self, const char *body, Py_ssize_t size) except -1:
        """Asks the send queue whether a command is for it."""
        cdef Py_ssize_t waiting
        cdef bytes own
        if self.recv_queue is None and self._frame_reader.complete:
            # The peer's earlier messages come first. After that the stream may reuse the memory of the command.
            own = PyBytes_FromStringAndSize(body, size)
            waiting = self._frame_reader.complete
            self._hand_over()
            self.messages_in += waiting - self._frame_reader.complete
            return self.lost or self.send_queue.heed(self, PyBytes_AS_STRING(own), size)
        return self.send_queue.heed(self, body, size)

    cdef int _hand_over(self) except -1:
        """Hands whole messages to the queue or the session that takes them."""
        if self._frame_reader.complete == 0:
            return 0
        if self.recv_queue is not None:
            self.recv_queue.arrived(self)
            return 0
        while self._frame_reader.complete and not self.lost:
            message = self._frame_reader.take_part()
            if self._frame_reader.more:
                message = [message]
                while self._frame_reader.more:
                    (<list>message).append(self._frame_reader.take_part())
            if self.send_queue is not None:
                self.send_queue.on_message(self, message)
            else:
                self._poller.call_back(self.session.on_message, message if type(message) is list else [message])
        return 0

    cdef int _lose(self, object reason) except -1:
        if not self.lost:
            self._cease()
            self._poller.call_back(self.session.on_lost, reason)
        return 0

    cdef int _settle(self) except -1:
        """Gives a peer that has ended its side, and may read on, the messages that no other peer can get."""
        if self.home is not None and self.send_queue is not None:  # otherwise it has left routing
            self.home.recall(self)  # except for the rest of a message that has begun to leave
        if self._send_buffer.bytes and not self._owing:
            self.flush()
        if self._send_buffer.bytes == 0:
            return self._lose(None)
        if not self._owing:
            self._owing = True
            self.writable = False
            # The end stays readable for ever, and must not wake a thread again.
            self._read_on(False)
            if self.send_queue is not None:
                self.send_queue.lost(self)
            self._poller.call_back(self.session.on_settling, None)
        return 0

    cdef int _cease(self) except -1:
        """Stops reading. The session may be notified in another thread, and later."""
        self.lost = True
        self.writable = False
        if self.recv_queue is not None and self.recv_queue._growing is self:
            self.recv_queue._growing = None
        # The end stays readable for ever, and must not wake a thread again.
        self._leave()
        if self.home is not None:
            self.home.recall(self)
        elif self.send_queue is not None:
            self.send_queue.lost(self)
        return 0

    cdef int fail(self, object error) except -1:
        if not self.lost:
            self._cease()
            self._hand_over()
        return self._poller.call_back(self.session.on_lost, error)

    cdef int dismiss(self) except -1:
        self.dismissed = True
        return self._poller.call_back(self.session.on_dismissed, None)

    cdef int log_error(self, object error) except -1:
        return self._poller.log_error(error)

    cdef bint has_ahead(self) noexcept:
        return self._read_ahead is not None and load(&self._read_ahead.bytes) > 0 and not self._stopped and not self.lost

    cdef bint sated(self) noexcept:
        return self._frame_reader.complete >= TURN_MESSAGES or self._frame_reader.has_large(TURN_BYTES)

    cdef int _read_on(self, bint on) except -1:
        """Makes the epoll set start or stop watching for bytes."""
        cdef SendBuffer send_buffer = self._send_buffer
        cdef unsigned int reading = EPOLLIN | EPOLLRDHUP
        send_buffer.hold()
        send_buffer.want(send_buffer.interest | reading if on else send_buffer.interest & ~reading)
        send_buffer.let_go()
        return 0

    cdef int refill(self) except -1:
        cdef long long holds
        if self.lost:
            return 0
        # Bytes that had no room in our kernel meanwhile wait in the peer's.
        if not self._behind and self._resets and outlook(self.fd, &holds) == CROWDED:
            self._behind = True
        # Read at once: while the peer is faster this saves the way through the event loop.
        self._stopped = False
        self._read()
        if not self._stopped and not self.lost:
            self._read_on(True)
            if self._away:
                self._away = False
                self._join()
        return 0

    cdef bint only_reads(self) noexcept:
        return load(&self._send_buffer.interest) & (EPOLLIN | EPOLLOUT) == EPOLLIN

    cdef Py_ssize_t ready(self) noexcept:
        return self._frame_reader.complete

    cdef bint head_more(self) noexcept:
        return self._frame_reader.head_more()

    cdef const char *peek(self, Py_ssize_t *size) except NULL:
        return self._frame_reader.peek(size)

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        return self._frame_reader.view(parts, room)

    cdef bint view_run(self, Run *run, Py_ssize_t limit) except -1:
        return self._frame_reader.view_run(run, limit)

    cdef int skip_run(self, const Run *run) except -1:
        return self._frame_reader.skip_run(run)

    cdef object take_part(self):
        part = self._frame_reader.take_part()
        self.more = self._frame_reader.more
        return part

    cdef object take_alone(self):
        part = self._frame_reader.take_short()
        if part is not None:
            return part
        return None if self._frame_reader.head_more() else self._frame_reader.take_part()

    cdef object take_quickly(self):
        return self._frame_reader.take_short() if self._frame_reader.complete else None

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        return self._frame_reader.take_into(into, size)

    cdef bint aim(self, char *into, Py_ssize_t size) except -1:
        return self._frame_reader.aim(into, size)

    cdef int withdraw(self) except -1:
        try:
            self._frame_reader.withdraw()
        except MemoryError as error:
            self._lose(error)
        return 0

    cdef int _begin_large(self) except -1:
        """Begins a large frame: in the memory of a call that waits for it, or else in memory of its own."""
        cdef RecvQueue recv_queue = self.recv_queue
        cdef FrameReader frame_reader = self._frame_reader
        if recv_queue is None:
            return frame_reader.start_large()
        recv_queue._growing = self
        if recv_queue._target == NULL or recv_queue._aiming is not None or not recv_queue.is_idle():
            return frame_reader.start_large()
        frame_reader.aim(recv_queue._target, recv_queue._target_size)
        recv_queue._aiming = self
        frame_reader.start_large()
        if frame_reader._aimed == NULL:
            recv_queue._aiming = None
            frame_reader.withdraw()
        return 0

    cdef bint _filled(self) noexcept:
        """Returns whether a large frame is complete in the memory of the call that waits for it."""
        return self._frame_reader._aimed != NULL and self._frame_reader._large != self._frame_reader._aimed

    cdef int skip(self) except -1:
        return self._frame_reader.skip()
