"""The data phase of a connection: batches out, frames in, on a raw descriptor in an epoll set of its socket.

The engine owns handshake and lifecycle and follows the connection through the session's methods: `on_command(body)`,
`on_message(parts)` (where neither a receive queue nor a send queue takes messages) and `on_lost(reason)`. Each runs on
the thread that serves the descriptor. Further ones are `on_restrained` (see `control`), `on_drained` (see `retire`),
`on_settling` after the peer has ended its side of the stream while a batch is still to leave, and `on_dismissed` after
the user has closed the connection.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.errno cimport ENOMEM, EPIPE
from libc.string cimport memset
from posix.unistd cimport close

from omq._core.wire.send_buffer cimport (
    BATCH_BYTES,
    BATCH_MESSAGES,
    FLUSH_BLOCKED,
    FLUSH_DONE,
    FLUSH_ENDED,
    FLUSH_ERROR,
    FLUSH_NOTHING,
    MAX_INLINE_BYTES,
    SPARSE_NS,
    SendBuffer,
    Part,
)
from omq._core.wire.frame_reader cimport MESSAGE_CEILING, FrameReader, Run
from omq._core.wire.framing cimport LONG_HEADER_BYTES, Asking, asking_size, write_asking
from omq._core.clock cimport now_ns
from omq._core.lock cimport drop_flag, load, store
from omq._core.kernel cimport NO_FD, EPOLLOUT
from omq._core.wire.codec cimport Codec
from omq._core.link.background cimport Background
from omq._core.link.flusher cimport Flusher
from omq._core.queues.peer cimport RecvQueue
from omq._core.wire.pool cimport Pool
from omq._core.wire.waiting cimport WaitingMessages
from omq._core.link.poller cimport Poller
from omq._core.link.read_ahead cimport ReadAhead
from omq._core.link.receiver cimport Receiver
from omq._core.link.command_backlog cimport (
    CLEAR,
    CROWDED,
    ENDED,
    MAX_HELD_BYTES,
    MIN_CLEAR_CHECKS,
    Outlook,
    CommandBacklog,
    outlook,
    set_low_water,
    unread_bytes,
)

cdef enum:
    SHORT_BURST_MESSAGES = 3     # messages directly after one that was written through that are written through as well
    READ_AHEAD_BYTES = 8192      # bytes that a peer reads at once (libzmq's in_batch_size), even while it is paused
    IDLE_TIMEOUT_MS = 1000       # without bytes from the peer, after which it counts as silent
    MAX_UNREAD_BYTES = 16777216  # bytes that two kernels and a peer's batch have at most, roughly
    CLOSE_TIMEOUT_MS = 5000      # how long a peer that is not silent delays closing, once its kernel has everything

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_INFO
    struct tcp_info:
        unsigned char tcpi_retransmits
        unsigned char tcpi_probes
        unsigned int tcpi_last_data_recv  # milliseconds

cdef extern from "<sys/socket.h>" nogil:
    int getsockopt(int, int, int, void *, unsigned int *)
    int shutdown(int, int)
    int SHUT_RDWR
    int SHUT_WR

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ
    unsigned long SIOCOUTQNSD

@cython.final
@cython.no_gc_clear  # the flusher's thread must drop it before it is freed; its session breaks the reference cycles
cdef class Connection(Receiver):
    """A connected descriptor after its handshake.

    Args:
        session: The engine's owner; gets `on_command(body)`, `on_message(parts)` and `on_lost(reason)`; also, with
            `None`, `on_restrained`, after which it must call `look_again` in a moment, `on_drained`, see `retire`, and
            `on_dismissed`, after which it must retire the connection.
        fd: A non-blocking stream descriptor; owned from here on.
        poller: The epoll set of its socket.
        pool: The pool of blocks.
        recv_queue: The queue for its messages; `None` gives them to the send queue, else to
            `session.on_message`.
        recv_hwm: Messages that may wait before reading stops; 0 for no bound.
        max_size: Bytes that one message may have, all parts together; `None` for no limit.
        max_parts: Parts that one message may have; `None` for 1048576.
        flusher: Writes batches that callers left; `None`: the send queue does, when the loop's turn ends.
        codec: The form of frames on the wire; `None`: plain frames (RFC 23, Framing).
        background: The thread that reads and writes while the owner is away, or `None`.
        ceiling: Bytes that may have arrived of an unfinished message while there is no *max_size*.
    """

    def __init__(
        self,
        session: Any,
        int fd,
        Poller poller not None,
        Pool pool not None,
        RecvQueue recv_queue: RecvQueue | None,
        recv_hwm: int,
        max_size: int | None = None,
        max_parts: int | None = None,
        Flusher flusher: Flusher | None = None,
        Codec codec: Codec | None = None,
        *,
        Background background: Background | None = None,
        ceiling: int = MESSAGE_CEILING,
    ) -> None:
        cdef SendBuffer send_buffer
        cdef FrameReader frame_reader
        self.fd = fd  # whatever fails from here on, the descriptor is closed
        send_buffer = SendBuffer(pool)
        frame_reader = FrameReader(pool, max_size, max_parts, ceiling)
        send_buffer.encode_with(codec)
        send_buffer.shared = flusher is not None or background is not None
        frame_reader.decode_with(codec)
        self._set_up(session, fd, poller, send_buffer, frame_reader, recv_queue, recv_hwm, flusher, background)
        self.writable = True

    def __dealloc__(self):
        if self.fd >= 0:
            self._part_with_threads()
            close(self.fd)

    def start(self, bytes received not None) -> None:
        """Joins the epoll set.

        Args:
            received: The bytes that came after the handshake.
        """
        cdef ReadAhead read_ahead
        self._join()
        if not received:
            return
        read_ahead = self._read_ahead
        if read_ahead is not None:
            read_ahead.begin()
        self._reading = True
        try:
            self._frame_reader.feed(PyBytes_AS_STRING(received), PyBytes_GET_SIZE(received))
            self.bytes_in += PyBytes_GET_SIZE(received)
            if self._digest() == 0:
                self._hand_over()
        finally:
            self._reading = False
            if read_ahead is not None:
                read_ahead.reset(self._frame_reader)
                read_ahead.leave()

    def close(self) -> None:
        """Leaves the epoll set and closes the descriptor. Messages that have arrived can still be taken."""
        self.lost = True
        if self.recv_queue is not None and self.recv_queue._growing is self:
            self.recv_queue._growing = None
        self.writable = False
        if self.fd >= 0:
            self._part_with_threads()
            self._leave()
            self._send_buffer.fd = -1
            self._avoid_reset()
            close(self.fd)
            self.fd = NO_FD
        self._backlog = None
        self.send_queue = self.home = None
        self._count_handed()
        self.abandoned += self._send_buffer.clear()

    cdef int _part_with_threads(self) except -1:
        """Makes sure that no thread without the GIL uses this connection any longer."""
        self._end_read_ahead()
        if self._flusher is not None:
            self._flusher.forget(self._send_buffer)
        if self._background is not None:
            self._background.forget(self._send_buffer)
            self._background = None
        self._send_buffer.waiting = None
        if self._read_ahead is not None:
            self._read_ahead.clear()
            self._read_ahead = None
        return 0

    cdef int _avoid_reset(self) except -1:
        """Makes sure that closing does not reset the connection while the peer's kernel lacks some of our bytes."""
        cdef int waiting = 0
        if self._resets and ioctl(self.fd, SIOCOUTQ, &waiting) == 0 and waiting:
            shutdown(self.fd, SHUT_WR)
            self._discard()
        return 0

    def close_after_fork(self) -> None:
        """Closes the descriptor in a forked child; touches nothing that is shared with the parent."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    def half_close(self) -> bool:
        """Ends our side of the stream and drops all further bytes of the peer.

        Closing a descriptor with unread bytes resets the connection, and a reset destroys bytes that the peer's kernel
        does not have yet (RFC 1122, 4.2.2.13). So reading continues until it has everything. A peer that still sends
        would be answered with a reset later, and some peers (libzmq, paused at its HWM) then drop bytes that they have
        not read. So if the peer may send more, reading continues until it is silent, or `CLOSE_TIMEOUT_MS` have passed.

        Returns:
            Whether the peer's kernel has everything, and closing does not destroy it there.
        """
        cdef int waiting = 0
        if self.fd < 0 or self._broken:
            return True
        if not self._parting:
            self._parting = True
            self.set_background_queue(None)
            self._backlog = None
            self._end_read_ahead()
            self._read_ahead = None
            self._write_closing_frame()
            set_low_water(self.fd, &self._send_buffer.low_water, 0)
            shutdown(self.fd, SHUT_WR)
            self._hwm = 0
            self.refill()
            if self.fd < 0:
                return True
        # Our FIN counts as a byte, and a kernel may delay its acknowledgement.
        if ioctl(self.fd, SIOCOUTQ, &waiting) == 0 and waiting > 1:
            return False
        return not (self._resets and self.sent_bytes() > READ_AHEAD_BYTES and self._is_speaking())

    cdef int _write_closing_frame(self) except -1:
        """Writes the codec's closing frame, if nothing waits in front of it."""
        cdef bytes frames = None if self._send_buffer.codec is None else self._send_buffer.codec.closing_frame(False)
        if frames is not None and self._send_buffer.bytes == 0 and not self._recalled:
            self._write(frames)
        return 0

    cdef bint _is_speaking(self) noexcept:
        """Returns whether the peer, whose kernel has everything, has sent lately, and so may have bytes to read."""
        cdef tcp_info info
        cdef unsigned int size = sizeof(info)
        cdef long long now = now_ns()
        if self.recv_queue is None and self.bytes_in == 0:
            return False  # the peer's type sends us nothing, and it sends no PINGs
        if self._delivered == 0:
            self._delivered = now
        memset(&info, 0, sizeof(info))
        return (now - self._delivered < <long long>CLOSE_TIMEOUT_MS * 1000000
                and getsockopt(self.fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0
                and info.tcpi_last_data_recv < IDLE_TIMEOUT_MS)

    def cease(self) -> None:
        """Ends our side of the stream, so that the peer sends nothing more; bytes that it sent before still arrive."""
        if self.fd >= 0 and not (self.lost or self._broken):
            self._backlog = None
            self.set_background_queue(None)
            self._broken = True  # for writing
            shutdown(self.fd, SHUT_WR)
            # Bounded by the content of the kernels: it is read also while the user is busy.
            self._brim = self.bytes_in + MAX_UNREAD_BYTES
            if self._stopped:
                self.refill()

    def retire(self) -> None:
        """Leaves routing: accepted messages still leave, and then the session is notified (`on_drained`)."""
        self.send_queue = None
        self.set_background_queue(None)
        self._retired = True
        self.flush()
        self._look_empty()  # the flusher may have written everything already, and notifies nothing

    cdef int _look_empty(self) except -1:
        """Notifies the session of a retired connection, once, that nothing is left to be written."""
        if self._retired and (self._send_buffer.bytes == 0 or self._broken or self.fd < 0):
            self._retired = False
            self._poller.call_back(self.session.on_drained, None)
        return 0

    def set_hwm_granularity(self, int hwm_granularity):
        self._send_buffer.hwm_granularity = hwm_granularity

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel does not have."""
        return self._send_buffer.bytes

    @property
    def untaken_bytes(self) -> int:
        """Bytes that the peer's kernel does not have; over ipc, the peer itself."""
        cdef int waiting = 0
        # The batch first: bytes that the flusher writes meanwhile are counted twice, and not missed.
        cdef Py_ssize_t unsent = self._send_buffer.bytes
        if self.fd >= 0:
            ioctl(self.fd, SIOCOUTQ, &waiting)
        return unsent + waiting

    @property
    def parts_cleanly(self) -> bool:
        """Returns whether the peer has everything that was accepted for it, and closing destroys nothing there."""
        if self.fd < 0 or self._broken:
            return True
        return self.untaken_bytes == 0 and not (
            self._resets and self.sent_bytes() > READ_AHEAD_BYTES and self._is_speaking()
        )

    # ------------------------------------------------------------------ taking back

    def send_parts(self, list parts not None):
        if self._greeted or self._send_buffer.total == 0:
            self._greeted += 1
        Receiver.send_parts(self, parts)

    cdef list reclaim(self):
        cdef list messages
        self.writable = False
        self._recalled = True
        messages = self._send_buffer.reclaim()
        self._count_handed()
        self.messages_out -= len(messages)
        if self._greeted > self.messages_out:  # the unsent ones were for this peer
            del messages[:self._greeted - self.messages_out]
        return messages

    cdef int set_background_queue(self, WaitingMessages waiting) except -1:
        self._send_buffer.hold()
        self._send_buffer.waiting = waiting
        self._send_buffer.let_go()
        return 0

    cdef int note_waiting(self) except -1:
        if self._background is not None:
            self._send_buffer.hold()
            self._background.note(self._send_buffer)
            self._send_buffer.let_go()
        return 0

    cdef int note_handed(self) except -1:
        if load(&self._send_buffer.handed):
            self._send_buffer.hold()
            self._count_handed()
            self._send_buffer.let_go()
            if self.send_queue is not None:
                self.send_queue.wait_queue.notify()
        return 0

    cdef bint _count_handed(self) except -1:
        """Counts the messages that the background thread has taken; the batch is held, or has no other user.

        Returns:
            Whether there were any: the queue has room for as many.
        """
        cdef long long handed = self._send_buffer.handed
        self.messages_out += handed
        store(&self._send_buffer.handed, 0)
        return handed != 0

    # ------------------------------------------------------------------ sending

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef bint first, torn
        cdef int status
        if self._broken or self._recalled:
            return 0
        send_buffer.hold()
        if count == 1 and send_buffer.bytes and send_buffer.append(parts):
            # The common case while messages gather: nothing to decide.
            if (send_buffer.bytes < BATCH_BYTES and send_buffer.messages < BATCH_MESSAGES
                    and not (send_buffer.stuck or send_buffer.failed or send_buffer._ndone)):
                send_buffer.let_go()
                self.messages_out += 1
                return 1
            count = 0
        try:
            first = send_buffer.bytes == 0
            if count:
                send_buffer.put_message(parts, count)
                if send_buffer.waiting is not None and send_buffer.waiting.kept_out:
                    send_buffer.waiting.end()  # the background thread may continue after this message
            self.messages_out += 1
            status = self._decide(first)
            if send_buffer._foreign:
                send_buffer.adopt()
        finally:
            torn = send_buffer._foreign
            if torn:
                # No memory: the rest is lost, and the peer may have the beginning. Nothing can follow it.
                send_buffer.failed = True
                send_buffer.error = ENOMEM
            send_buffer.let_go()
            if torn:
                self._after(FLUSH_ERROR)
        self._after(status)
        return 1

    cdef bint send_quickly(self, const Part *part, Py_ssize_t hwm) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef int *flag
        cdef bint taken
        if part.size > MAX_INLINE_BYTES or self._broken or not self.writable:
            return False
        flag = send_buffer.hold_to_append()
        if flag == NULL:
            return False
        # Messages gather, and the batch is not full with this one: nothing to decide.
        taken = (
            send_buffer.bytes > 0
            and send_buffer.bytes + part.size < BATCH_BYTES - LONG_HEADER_BYTES
            and send_buffer.messages < BATCH_MESSAGES - 1
            and (hwm == 0 or send_buffer.messages < hwm)
            and not (send_buffer.stuck or send_buffer.failed or send_buffer._ndone)
            and send_buffer.append(part)
        )
        drop_flag(flag)
        if taken:
            self.messages_out += 1
        return taken

    cdef bint send_encoded_quickly(self, const char *data, Py_ssize_t size, Py_ssize_t hwm) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef int *flag
        cdef bint taken
        if send_buffer.codec is not None or self._broken or not self.writable or self.send_queue is None:
            return False
        flag = send_buffer.hold_to_append()
        if flag == NULL:
            return False
        taken = (
            send_buffer.bytes > 0
            and send_buffer.bytes + size < BATCH_BYTES
            and send_buffer.messages < self.send_queue.most - 1
            and (hwm == 0 or send_buffer.messages < hwm)
            and not (send_buffer.stuck or send_buffer.failed or send_buffer._ndone)
            and send_buffer.append_encoded(data, size)
        )
        drop_flag(flag)
        if taken:
            self.messages_out += 1
        return taken

    cdef int send_encoded(self, const char *data, Py_ssize_t size, const Part *parts, Py_ssize_t count) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef bint first
        cdef int status
        if send_buffer.codec is not None:
            return self.send(parts, count)  # the codec's output is for this peer alone
        if self._broken or self._recalled:
            return 0
        send_buffer.hold()
        try:
            first = send_buffer.bytes == 0
            send_buffer.copy(data, size)
            send_buffer.end_message()
            self.messages_out += 1
            status = self._decide(first)
        finally:
            send_buffer.let_go()
        self._after(status)
        return 1

    cdef Py_ssize_t send_run(self, list messages, Py_ssize_t start, Py_ssize_t limit) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef Part part
        cdef bint first
        cdef int status
        cdef Py_ssize_t at = start
        if self._broken or self._blocked or self._recalled:
            return 0
        send_buffer.hold()
        try:
            first = send_buffer.bytes == 0
            while (at < len(messages) and at < start + limit
                    and send_buffer.bytes < BATCH_BYTES and send_buffer.messages < BATCH_MESSAGES):
                message = messages[at]
                if type(message) is not bytes:
                    break
                part.data = PyBytes_AS_STRING(message)
                part.size = PyBytes_GET_SIZE(message)
                part.owner = <PyObject *>message
                send_buffer.put_message(&part, 1)
                at += 1
            self.messages_out += at - start
            status = self._decide(first) if at > start else FLUSH_NOTHING
        finally:
            send_buffer.let_go()
        self._after(status)
        return at - start

    cdef bint takes_frames(self) noexcept:
        return self.writable and not self._broken and self._send_buffer.codec is None

    cdef int send_frames(self, const Run *run) except -1:
        cdef SendBuffer send_buffer = self._send_buffer
        cdef bint first
        cdef int status
        send_buffer.hold()
        try:
            first = send_buffer.bytes == 0
            send_buffer.copy_run(run.data, run.size, <int>run.count)
            self.messages_out += run.count
            status = self._decide(first)
        finally:
            send_buffer.let_go()
        return self._after(status)

    cdef int _decide(self, bint first) except? -1:
        """Decides whether the held batch, which has whole messages, is written now or gathers more; returns FLUSH_*."""
        cdef SendBuffer send_buffer = self._send_buffer
        cdef int status = FLUSH_NOTHING
        cdef long long now
        if self._blocked:
            if first and self._background is not None:
                self._background.note(send_buffer)  # the batch before has left, and no event is to come
        elif send_buffer.stuck or send_buffer.failed:
            status = FLUSH_ERROR if send_buffer.failed else FLUSH_ENDED if send_buffer.ended else FLUSH_BLOCKED
        elif (send_buffer.bytes >= BATCH_BYTES or send_buffer._foreign or send_buffer._lent
                or send_buffer.next_overflows()
                or send_buffer.messages >= (BATCH_MESSAGES if self.send_queue is None else self.send_queue.most)):
            self._dense = True
            send_buffer._lent = False
            if self._flusher is not None:
                send_buffer.last_write = send_buffer.last_full = now_ns()
            status = self._push()
        elif first and self.send_queue is not None and self.send_queue.led:
            self.send_queue.note(self)
            self.send_queue.wait_queue.notify()  # the leader may sleep: this is not always its own message
        elif first:
            # After a pause: write through. Otherwise messages gather, until the turn ends or the flusher comes.
            if self.send_queue is None or not (self._dense or self.send_queue.gathers or self.send_queue.more):
                now = now_ns()
                if self.send_queue is None or now - send_buffer.last_write > SPARSE_NS:
                    if self.bytes_in != self._bytes_at_write:
                        # The peer has answered since the last write: the next check for its end can wait.
                        self._bytes_at_write = self.bytes_in
                        send_buffer.looked = max(send_buffer.looked, send_buffer.last_write)
                    self._short_burst = SHORT_BURST_MESSAGES
                    send_buffer.last_write = now
                    status = self._push()
                elif self._short_burst > 0 and self._flusher is not None:
                    # So far this may be a burst of a few messages, after which the caller goes off to compute. The
                    # flusher may have to wake up another core, which takes longer than these system calls.
                    self._short_burst -= 1
                    send_buffer.last_write = now
                    status = self._push()
            if status == FLUSH_NOTHING:
                if self._flusher is None or self.send_queue.draining:
                    self.send_queue.defer(self)
                    if self._background is not None:
                        self._background.note(send_buffer)
                elif self._flusher.leave(send_buffer):
                    self._dense = False
                    self.send_queue.note(self)
                else:
                    status = self._push()  # no other thread would write it
        return status

    cdef int _push(self) noexcept:
        """Hands the held batch to the kernel; returns FLUSH_*. A large one is released meanwhile, and held again."""
        cdef SendBuffer send_buffer = self._send_buffer
        cdef int status
        # Once it has left routing, accepted messages are for this peer, which may have ended its side and read on.
        send_buffer.looks = self.home is not None and self.send_queue is not None and not self._recalled
        if self._flusher is not None and send_buffer.bytes > 2 * BATCH_BYTES:
            with nogil:
                status = send_buffer.push(self.fd)
                # The GIL may take seconds to come back. Until then the background thread continues the write.
                drop_flag(&send_buffer._taken)
            send_buffer.hold()
        else:
            status = send_buffer.push(self.fd)
        return status

    cdef int _after(self, int status) except -1:
        """Handles the result of a write; the batch is no longer held."""
        if self._send_buffer._ndone or status == FLUSH_DONE:
            self._send_buffer.reap()
        if status == FLUSH_NOTHING:
            return 0
        if status == FLUSH_DONE:
            if self._blocked:
                self._blocked = False
                if not (self._owing or self._recalled):
                    self.writable = True
                    if self.send_queue is not None:
                        self.send_queue.opened(self)
        elif status == FLUSH_BLOCKED:
            self._blocked = True
            self.writable = False
            if self.send_queue is not None:
                self.send_queue.blocked(self)
        elif status == FLUSH_ENDED:
            if self.home is not None:
                self.home.recall(self)  # the reading side finds the end
        else:
            # The peer is gone for writing. Its earlier bytes are still to be read, so the reading side reports
            # the end; a message that has begun to leave is lost.
            self._broken = True
            self.writable = False
            if self.home is not None:
                self.home.recall(self)
            if self.home is not None or self.send_queue is not None:
                self.abandoned += self._send_buffer.clear()  # otherwise its session takes it back
            self._send_buffer.hold()
            self._send_buffer.want(self._send_buffer.interest & ~EPOLLOUT)
            self._send_buffer.let_go()
            if self.send_queue is not None:
                self.send_queue.remove(self)
            if self._send_buffer.error != EPIPE:
                # The peer cannot see that it gets nothing more. The reading side finds the end, and its reason.
                shutdown(self.fd, SHUT_RDWR)
        return self._look_empty()

    # ------------------------------------------------------------------ commands

    cpdef int control(self, bytes frames) except -1:
        cdef Outlook outlook = CLEAR
        if self.lost or self._broken or self._parting:
            return 0
        if self._resets:
            outlook = self._outlook()
            if outlook == CROWDED:
                return self._hold_back(frames)
            if outlook == ENDED:
                # All bytes of the peer are here. It has closed, and would reset us, or needs no commands any more.
                self._backlog = None
                return 0
        return self._write(frames)

    def probe(self, bytes frames not None) -> bool:
        """Sends a PING if necessary: an unread byte of the peer shows that it lives.

        Returns:
            Whether it was sent.
        """
        if self.lost or self._broken or self._parting or self.has_unread:
            return False
        if self._resets:
            if self._behind and self._backlog is None and self._calm == self.bytes_in:
                self._behind = False  # since the last check nothing has come, with all the room in our kernel
            self._calm = self.bytes_in
            if self._outlook() != CLEAR:
                return False
        self._write(frames)
        return True

    @property
    def has_unread(self) -> bool:
        """Returns whether the peer has sent something that we have not read, or that no thread would read now."""
        return self._stopped or self.fd < 0 or self._unread() > 0

    cdef Py_ssize_t _unread(self) noexcept:
        """Returns the number of bytes that have arrived and that the owner has not read; makes the kernel report them.

        A peer that has died within a large frame would have some for ever.
        """
        cdef ReadAhead read_ahead = self._read_ahead
        cdef bint held = self._reading  # by this thread's read or another's: the background thread is kept out
        cdef Py_ssize_t unread
        if read_ahead is None:
            set_low_water(self.fd, &self._send_buffer.low_water, 0)
            return unread_bytes(self.fd)
        # Bytes that the background thread moves from the kernel to its memory right now would be in neither count.
        if not held:
            read_ahead.begin()
        set_low_water(self.fd, &self._send_buffer.low_water, 0)
        unread = unread_bytes(self.fd) + <Py_ssize_t>load(&read_ahead.bytes)
        if not held:
            read_ahead.leave()
        return unread

    @property
    def held_up(self) -> bool:
        """Returns whether the peer's process may be slow: it has not read our bytes, and its kernel answers.

        A PING waits after those bytes and cannot be answered. The process may be slow or dead; its system is alive.
        Over tcp, only bytes that the kernel has no room for count: acknowledgements may take 200 ms, so the last of
        several PINGs often waits for one. Over ipc, unread PINGs count, too: libzmq at its high-water mark reads
        nothing, and aborts (`!_io_error`) if such a connection is closed.
        """
        cdef int waiting = 0
        cdef tcp_info info
        cdef unsigned int size = sizeof(info)
        if self.fd < 0 or self._broken:
            return False
        if self._send_buffer.bytes == 0 and (
            ioctl(self.fd, SIOCOUTQNSD if self._resets else SIOCOUTQ, &waiting) < 0 or waiting == 0
        ):
            return False
        # The kernel counts the probes that got no answer.
        return not self._resets or (
            getsockopt(self.fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0
            and info.tcpi_retransmits <= 1 and info.tcpi_probes <= 1
        )

    def look_again(self) -> bool:
        """Sends the waiting commands, a moment after `on_restrained`, if the peer's kernel has nothing left.

        Returns:
            Whether to check again in another moment.
        """
        cdef CommandBacklog waiting = self._backlog
        cdef Outlook found
        cdef Py_ssize_t unread
        if waiting is None or self.lost or self._broken or self.fd < 0:
            return False
        waiting.asked = False
        found = outlook(self.fd, &waiting.room)
        unread = self._unread()
        if found == ENDED:
            self._backlog = None
        elif found == CROWDED:
            waiting.looks = 0  # when all of it has been read, the session is asked again
        elif waiting.looks >= MIN_CLEAR_CHECKS or (
            waiting.seen == self.bytes_in + unread and (self._stopped or not unread)
        ):
            self._release()
        else:
            waiting.looks += 1
            waiting.seen = self.bytes_in + unread
            waiting.asked = True
            return True
        return False

    cdef Outlook _outlook(self) noexcept:
        """Returns whether a command may leave now."""
        cdef long long holds
        cdef Outlook found
        if self._ending:
            return ENDED
        if self._backlog is not None or self._behind:
            return CROWDED
        found = outlook(self.fd, &holds)
        if found == CROWDED:
            self._behind = True
        return found

    cdef int _hold_back(self, bytes frames) except -1:
        cdef CommandBacklog waiting = self._backlog
        if waiting is None:
            waiting = self._backlog = CommandBacklog(self.bytes_in)
            outlook(self.fd, &waiting.room)
        waiting.add(frames)
        if waiting.size > MAX_HELD_BYTES:
            return self._release()
        return self._ask_session()

    cdef int _ask_session(self) except -1:
        """Asks the session to check in a moment: by then everything that the peer's kernel still has will have come.

        That holds also while the owner does not read, as long as our kernel has room.
        """
        cdef CommandBacklog waiting = self._backlog
        if not waiting.asked:
            waiting.asked = True
            waiting.seen = self.bytes_in + self._unread()
            self._poller.call_back(self.session.on_restrained, None)
        return 0

    cdef int _look_back(self, bint caught_up) except -1:
        cdef CommandBacklog waiting = self._backlog
        if waiting is None or self.lost or self._ending:
            return 0
        if waiting.outlived(self.bytes_in):
            return self._release()
        return self._ask_session() if caught_up else 0

    cdef int _release(self) except -1:
        cdef CommandBacklog waiting = self._backlog
        self._backlog = None
        self._behind = False
        return self._write(waiting.all())

    cdef int _write(self, bytes frames) except -1:
        cdef int status = FLUSH_NOTHING
        self._send_buffer.hold()
        try:
            self._send_buffer.put_frames(PyBytes_AS_STRING(frames), PyBytes_GET_SIZE(frames))
            if not self._blocked:
                status = self._push()
        finally:
            self._send_buffer.let_go()
        return self._after(status)

    cdef int ask(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, asking_size(size, <Asking>self.asking, subscribe))
        write_asking(<unsigned char *>PyBytes_AS_STRING(frame), prefix, size, <Asking>self.asking, subscribe)
        return self.control(frame)

    cdef int ask_all(self, list prefixes) except -1:
        cdef Py_ssize_t total = 0
        cdef unsigned char *end
        cdef bytes prefix, frames
        for prefix in prefixes:
            total += asking_size(PyBytes_GET_SIZE(prefix), <Asking>self.asking, True)
        if total == 0:
            return 0
        frames = PyBytes_FromStringAndSize(NULL, total)
        end = <unsigned char *>PyBytes_AS_STRING(frames)
        for prefix in prefixes:
            end += write_asking(end, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), <Asking>self.asking, True)
        return self.control(frames)

    cdef Py_ssize_t pending(self) noexcept:
        return self._send_buffer.messages

    cdef long long sent_messages(self) noexcept:
        return self.messages_out + load(&self._send_buffer.handed) - self._send_buffer.messages - self.abandoned

    cdef long long sent_bytes(self) noexcept:
        return self._send_buffer.total - self._send_buffer.bytes

    cdef int flush(self) except -1:
        cdef int status = FLUSH_NOTHING
        cdef bint handed
        if self.fd < 0 or self._broken:
            return 0
        if self._flusher is not None and self._blocked and self._send_buffer.waiting is not None:
            # The rest follows at once. If the GIL does not come back soon, the background thread continues.
            with nogil:
                self._send_buffer.flush_on()
        self._send_buffer.hold()
        handed = self._count_handed()
        if self._send_buffer.bytes or self._blocked or self._send_buffer.stuck:
            status = self._push()
        self._send_buffer.let_go()
        self._after(status)
        if handed and self.send_queue is not None:
            # The queue has room although the kernel is full again: `note_handed` finds nothing to count any more.
            self.send_queue.wait_queue.notify()
        return 0

    cdef int end_turn(self) except -1:
        if self._send_buffer.bytes and not self._blocked:
            self._send_buffer.last_write = now_ns()
            self.flush()
        self._dense = False
        return 0
