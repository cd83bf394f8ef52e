"""Signs of life while no thread has time to read: a thread that never takes the GIL answers PINGs.

A C function may keep the GIL for seconds. No thread reads then, and a peer that expects signs of life would give up
the connection. So the flusher's thread looks, from time to time, at the unread bytes of connections that nobody
reads. It leaves the bytes where they are (MSG_PEEK), finds the PINGs and answers them. The later reader knows that.
"""

cimport cython
from libc.errno cimport EAGAIN
from libc.string cimport memcmp, memcpy

from posix.time cimport nanosleep, timespec

from omq._core.clock cimport now_ns
from omq._core.kernel cimport EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from omq._core.link.command_backlog cimport CLEAR, outlook
from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.wire.codec cimport GLANCE_LIMIT, OVERHEAD_LIMIT, WireFrame, measure_plain
from omq._core.wire.framing cimport FLAG_COMMAND, write_header

cdef extern from "<sys/socket.h>" nogil:
    int MSG_PEEK

cdef extern from *:
    """
    #include <poll.h>

    static inline int omq_has_events(int epoll_fd) {
        struct pollfd one = {epoll_fd, POLLIN, 0};
        return poll(&one, 1, 0) != 0;
    }
    """
    bint omq_has_events(int) noexcept nogil

cdef enum:
    CONTEXT = 16             # bytes that a PING's context has at most (RFC 37, Connection Heartbeating)
    PING_SIZE = 7            # bytes of a PING's body without it
    PONG_SIZE = 5            # bytes of a PONG's body without it
    MUCH = 65536             # unread bytes that take long to look at
    LEAST_GAP_NS = 5000000   # nanoseconds: no peer asks more often
    FIRST_NS = 50000000      # nanoseconds of silence after which a new connection is looked at for its first PING


@cython.final
@cython.no_gc  # nothing that it refers to can refer to it
cdef class PingResponder:
    def __cinit__(self, SendBuffer send_buffer not None, bint resets):
        self.send_buffer = send_buffer
        self.resets = resets
        self.boundary = -1
        self.begun = self.read = now_ns()

    cdef void begin(self) noexcept:
        """Keeps the other thread out for a read. Called with the GIL held, and releases it while that thread looks."""
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = 1000
        if not self.enter():
            with nogil:
                while not self.enter():
                    nanosleep(&moment, NULL)

    cdef void heard(self, long long now) noexcept nogil:
        """Notes a PING, which was read, or found unread for the first time."""
        # The first gap counts from the beginning. PINGs that are read together show no gap.
        self.gap = max(now - (self.pinged or self.begun), self.gap // 2, <long long>LEAST_GAP_NS)
        self.pinged = now

    cdef long long _patience(self, long long now) noexcept nogil:
        """Nanoseconds without a read after which the thread is to look."""
        if self.gap:
            return self.gap + self.gap // 8
        # A peer that has sent no PING yet may do so soon or seldom: the gap grows with the connection's age.
        return max(<long long>FIRST_NS, (now - self.begun) // 4)

    cdef long long _with_others(self, long long due, long long patience) noexcept nogil:
        """A moment not long after *due* that connections of about the same age share: one wake-up serves them all."""
        cdef long long step = 1
        while 2 * step <= patience:
            step *= 2
        return (due + step - 1) // step * step

    cdef bint _is_still(self, Stillness *last) noexcept nogil:
        """Whether the epoll set shows that nothing is unread: one look at the set serves all connections of a socket."""
        if self.send_buffer.poll_fd < 0 or not self.send_buffer.interest & EPOLLIN:
            return False  # the set does not show it
        if last.poll_fd != self.send_buffer.poll_fd:
            last.poll_fd = self.send_buffer.poll_fd
            last.still = not omq_has_events(last.poll_fd)
        return last.still

    cdef long long look(self, long long now, unsigned char *view, Stillness *last) noexcept nogil:
        """Answers PINGs, if no thread reads; returns when to look again.

        *view* has VIEW bytes. *last* is what the last look at an epoll set has shown.
        """
        cdef Py_ssize_t size
        cdef long long patience, due
        if not self.enter():
            return now + FIRST_NS  # a thread reads
        patience = self._patience(now)
        due = self.read + patience
        if due <= now:
            due = now + patience // 8 if self.gap else self._with_others(now + patience, patience)
            if self._is_still(last):
                self.had = 0
            elif self.boundary >= 0 and self.send_buffer.fd >= 0:
                size = recv(self.send_buffer.fd, view, VIEW, MSG_PEEK | MSG_DONTWAIT)
                if size > self.seen:
                    self._examine(view, size)
                if size == self.had and size > MUCH:
                    due = now + patience  # nothing has come since, and each look is expensive
                self.had = size
        self.due = due
        self.leave()
        return due

    cdef void _examine(self, const unsigned char *view, Py_ssize_t size) noexcept nogil:
        """Goes through the frames that have arrived and answers the PINGs that are new."""
        cdef WireFrame frame
        cdef unsigned char context[CONTEXT]
        cdef Py_ssize_t at = <Py_ssize_t>self.boundary if self.boundary <= size else size
        cdef Py_ssize_t has
        while at < size and self._measure(view + at, size - at, &frame) == 1:
            if frame.size > <size_t>(size - at - frame.length):
                break
            if at >= self.seen:
                has = self._ping(view + at, &frame, context)
                if has >= 0:
                    if not self._open() or not self._answer(context, has):
                        return
                    self.ahead += 1
                    self.heard(now_ns())
                self.seen = at + frame.length + <Py_ssize_t>frame.size
            at += frame.length + <Py_ssize_t>frame.size

    cdef int _measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        if self.send_buffer.codec is None:
            return measure_plain(p, available, frame)
        return self.send_buffer.codec.measure(p, available, frame)

    cdef Py_ssize_t _ping(self, const unsigned char *p, const WireFrame *frame, unsigned char *context) noexcept nogil:
        """Copies a PING's context, and returns its size; -1: this is no PING."""
        cdef unsigned char clear[GLANCE_LIMIT]
        cdef const unsigned char *body = p + frame.length
        cdef Py_ssize_t size
        if frame.payload < PING_SIZE or frame.payload > PING_SIZE + CONTEXT:
            return -1
        if self.send_buffer.codec is None:
            if not frame.flags & FLAG_COMMAND:
                return -1
        else:
            if self.send_buffer.codec.glance(p, frame, clear) != FLAG_COMMAND:
                return -1
            body = clear
        if memcmp(body, b"\4PING", 5) != 0:
            return -1
        size = <Py_ssize_t>frame.payload
        memcpy(context, body + PING_SIZE, size - PING_SIZE)
        return size - PING_SIZE

    cdef bint _open(self) noexcept nogil:
        """Whether an answer does no harm: as far as can be known the peer has not closed."""
        cdef long long holds
        return not self.resets or (not self.behind and outlook(self.send_buffer.fd, &holds) == CLEAR)

    cdef bint _answer(self, const unsigned char *context, Py_ssize_t size) noexcept nogil:
        """Sends a PONG with the context that came (RFC 37, Connection Heartbeating); False: not now."""
        cdef unsigned char frame[OVERHEAD_LIMIT + PONG_SIZE + CONTEXT]
        cdef unsigned char body[PONG_SIZE + CONTEXT]
        cdef Py_ssize_t length, whole, sent
        cdef bint done = False
        if not take_flag(&self.send_buffer._taken):
            return False
        if (self.send_buffer.bytes == 0 and not self.send_buffer.stuck and not self.send_buffer.failed
                and self.send_buffer.fd >= 0):
            memcpy(body, b"\4PONG", PONG_SIZE)
            memcpy(body + PONG_SIZE, context, size)
            if self.send_buffer.codec is None:
                length = write_header(frame, FLAG_COMMAND, PONG_SIZE + size)
                memcpy(frame + length, body, PONG_SIZE + size)
                whole = length + PONG_SIZE + size
            else:
                whole = self.send_buffer.codec.encode(frame, FLAG_COMMAND, <const char *>body, PONG_SIZE + size)
            if whole > 0:
                sent = send(self.send_buffer.fd, frame, whole, MSG_DONTWAIT | MSG_NOSIGNAL)
                done = sent == whole
                if done:
                    self.send_buffer.total += whole
                elif sent > 0:
                    self.send_buffer.error = EAGAIN
                    self.send_buffer.give_up()  # half a frame: nothing can follow it
        drop_flag(&self.send_buffer._taken)
        return done
