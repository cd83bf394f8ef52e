"""Reads ahead of an owner that is busy, on a thread that never takes the GIL.

A C function may keep the GIL for seconds, and a coroutine may keep its loop for any time: then no thread reads. The
peer would run into its high-water mark, and a publisher would drop messages that the subscriber has room for. So the
background thread reads into memory of its own, up to `recv_hwm` messages, and the connection's next read takes those
bytes first. It reads only bytes that the kernel counts as unread: only the owner finds the end of the stream.

The thread also answers the PINGs among the frames. If it may not read, it peeks at the bytes in the kernel
(MSG_PEEK).
"""

cimport cython
from libc.errno cimport EAGAIN
from libc.string cimport memcmp, memcpy

from posix.time cimport nanosleep, timespec

from omq._core.clock cimport now_ns
from omq._core.kernel cimport EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from omq._core.link.command_backlog cimport CLEAR, CROWDED, outlook, set_low_water, settling_ns, unread_bytes
from omq._core.lock cimport add_to, load, store
from omq._core.wire.frame_reader cimport FrameReader
from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.wire.codec cimport MAX_GLANCE_BYTES, MAX_OVERHEAD_BYTES, WireFrame, measure_plain
from omq._core.wire.framing cimport FLAG_COMMAND, FLAG_MORE, PING_BYTES, PING_CONTEXT_BYTES, PONG_BYTES, write_header

cdef extern from "<sys/socket.h>" nogil:
    int MSG_PEEK

cdef extern from *:
    """
    #include <poll.h>
    #include <sys/mman.h>

    static inline int omq_has_events(int epoll_fd) {
        struct pollfd one = {epoll_fd, POLLIN, 0};
        return poll(&one, 1, 0) != 0;
    }

    /* Memory of its own: it goes back to the system at once, whichever thread lets it go. */
    static inline void *omq_map(size_t size) {
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    """
    bint omq_has_events(int) noexcept nogil
    void *omq_map(size_t) noexcept nogil
    int munmap(void *, size_t) noexcept nogil

cdef enum:
    STEP_BYTES = 65536         # bytes that are read at once, and so the most that may come in beyond the mark
    FIRST_CHUNK_BYTES = 65536
    CHUNK_BYTES = 1048576
    READ_TURN_BYTES = 1048576  # bytes of one connection that are read before the next one's turn
    LARGE_PEEK_BYTES = 65536   # unread bytes that take long to parse
    MIN_PING_GAP_NS = 5000000  # shortest known gap between two PINGs of a peer


@cython.final
@cython.no_gc  # its attributes cannot refer to it
cdef class ReadAhead:
    def __cinit__(self, SendBuffer send_buffer not None, bint resets):
        self.send_buffer = send_buffer
        self.resets = resets
        self.unanswered = -1
        self.begun = self.read = now_ns()

    def __dealloc__(self):
        self.clear()

    # ------------------------------------------------------------------ the owner's side, with the GIL

    cdef void begin(self) noexcept:
        """Keeps the other thread out for a read. Called with the GIL held; releases it while that thread reads."""
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = 1000
        if not self.enter():
            with nogil:
                while not self.enter():
                    nanosleep(&moment, NULL)

    cdef void taken_in(self, Py_ssize_t size) noexcept nogil:
        """Notes that the owner has read bytes from the kernel; `reset` must follow."""
        self._head += size

    cdef void reset(self, FrameReader frame_reader) noexcept:
        """Notes the position in the stream after the owner's read."""
        cdef long long rest = frame_reader.boundary()
        self.waiting = frame_reader.complete
        self.messages = 0
        self._parsed = self._head
        self._carried = 0
        self._skip = rest if rest > 0 else 0
        self._halted = False
        if rest < 0:
            # Part of the next frame's header has arrived.
            self._carried = frame_reader.unscanned(<char *>self._carry, CARRY_BYTES)
            self._halted = self._carried <= 0

    cdef Py_ssize_t pass_on(self, FrameReader frame_reader) noexcept nogil:
        """Gives the oldest bytes to *frame_reader*; returns how many, or FILL_NO_MEMORY."""
        cdef Chunk *chunk = self._first
        cdef Py_ssize_t got = frame_reader.absorb(<char *>chunk + chunk.pos, chunk.end - chunk.pos)
        if got > 0:
            chunk.pos += got
            store(&self.bytes, self.bytes - got)
            add_to(&self.budget.used, -got)
            if chunk.pos == chunk.end:
                self._first = chunk.next
                if self._first == NULL:
                    self._last = NULL
                munmap(chunk, chunk.size)
        return got

    cdef void clear(self) noexcept nogil:
        """Drops the bytes that were read ahead."""
        cdef Chunk *chunk
        while self._first != NULL:
            chunk = self._first
            self._first = chunk.next
            munmap(chunk, chunk.size)
        self._last = NULL
        if self.bytes:
            add_to(&self.budget.used, -self.bytes)
        store(&self.bytes, 0)

    cdef void note_ping(self, long long now) noexcept nogil:
        """Notes a PING, which was read, or found unread for the first time."""
        # The first gap counts from the beginning. PINGs that are read together show no gap.
        self.gap = max(now - (self.pinged or self.begun), self.gap // 2, <long long>MIN_PING_GAP_NS)
        self.pinged = now

    # ------------------------------------------------------------------ the background thread's side

    cdef bint is_full(self) noexcept nogil:
        """Returns whether nothing more may be read ahead."""
        cdef long long hwm = load(&self.hwm)
        return (self._halted or (hwm and self.waiting + self.messages >= hwm) or self.bytes >= self.limit
                or load(&self.budget.used) >= self.budget.most)

    cdef char *_room(self, Py_ssize_t *room) noexcept nogil:
        """Returns memory for the next bytes; NULL: no memory."""
        cdef Chunk *chunk = self._last
        cdef Py_ssize_t size
        if chunk == NULL or chunk.end == chunk.size:
            size = FIRST_CHUNK_BYTES if chunk == NULL else CHUNK_BYTES
            chunk = <Chunk *>omq_map(size)
            if chunk == NULL:
                return NULL
            chunk.size = size
            chunk.pos = chunk.end = sizeof(Chunk)
            if self._last == NULL:
                self._first = chunk
            else:
                self._last.next = chunk
            self._last = chunk
        room[0] = chunk.size - chunk.end
        return <char *>chunk + chunk.end

    cdef Py_ssize_t take(self, long long now, unsigned char *view) noexcept nogil:
        """Reads from the kernel, up to one turn's worth; returns the number of bytes, -1: another thread reads.

        *view* has VIEW_BYTES bytes. If nothing may be read, the thread peeks at them.
        """
        cdef Py_ssize_t taken = 0, room, got, seen
        cdef long long holds
        cdef char *into
        cdef bint caught_up = False
        if not self.enter():
            return -1
        if self.resets and outlook(self.send_buffer.fd, &holds) == CROWDED:
            self.behind = True
            self.crowded = now
        set_low_water(self.send_buffer.fd, &self.send_buffer.low_water, 0)  # PINGs are small
        while taken < READ_TURN_BYTES and self.send_buffer.fd >= 0 and not self.is_full():
            got = unread_bytes(self.send_buffer.fd)
            if got <= 0:
                caught_up = True
                break
            into = self._room(&room)
            if into == NULL:
                break
            got = recv(self.send_buffer.fd, into, min(got, room, <Py_ssize_t>STEP_BYTES), MSG_DONTWAIT)
            if got <= 0:
                break
            self._last.end += got
            store(&self.bytes, self.bytes + got)
            add_to(&self.budget.used, got)
            taken += got
            seen = <Py_ssize_t>min(self._parsed - self._head, <long long>got)
            self._head += got
            self._scan(<unsigned char *>into + seen, got - seen)
        if taken:
            self.read = now
            self.had = 0
        if self.behind:
            if not caught_up:
                self.crowded = now
            elif now - self.crowded >= settling_ns(self.send_buffer.fd):
                self.behind = False  # our kernel has had room for so long that the peer's holds nothing
        if taken < READ_TURN_BYTES and self.is_full():
            self._peek(view, VIEW_BYTES)
        self._answer()
        if self.behind and self.unanswered >= 0:
            self.due = min(self.due, now + FIRST_CHECK_NS)
        self.leave()
        return taken

    cdef Py_ssize_t _peek(self, unsigned char *view, Py_ssize_t size) noexcept nogil:
        """Peeks at the kernel's bytes; returns their number."""
        cdef Py_ssize_t seen = <Py_ssize_t>(self._parsed - self._head)
        if self._halted or self.send_buffer.fd < 0 or seen >= size or unread_bytes(self.send_buffer.fd) == 0:
            return 0
        size = recv(self.send_buffer.fd, view, size, MSG_PEEK | MSG_DONTWAIT)
        if size > seen:
            self._scan(view + seen, size - seen)
        return max(size, <Py_ssize_t>0)

    cdef long long _check_delay(self, long long now) noexcept nogil:
        """Returns the nanoseconds without a read after which the thread must check."""
        if self.behind and self.unanswered >= 0:
            return FIRST_CHECK_NS  # the longest delay of an answer
        if self.gap:
            return self.gap + self.gap // 8
        # A peer that has sent no PING yet may do so soon or seldom: the gap grows with the connection's age.
        return max(<long long>FIRST_CHECK_NS, (now - self.begun) // 4)

    cdef long long _with_others(self, long long due, long long delay) noexcept nogil:
        """Returns a time soon after *due* that connections of about the same age share: one wake-up serves them all."""
        cdef long long step = 1
        while 2 * step <= delay:
            step *= 2
        return (due + step - 1) // step * step

    cdef bint _is_still(self, Stillness *last) noexcept nogil:
        """Returns whether the epoll set shows that nothing is unread: one check serves all connections of a socket."""
        if self.send_buffer.poll_fd < 0 or not load(&self.send_buffer.interest) & EPOLLIN:
            return False  # the set does not show it
        if last.poll_fd != self.send_buffer.poll_fd:
            last.poll_fd = self.send_buffer.poll_fd
            last.still = not omq_has_events(last.poll_fd)
        return last.still

    cdef long long look(self, long long now, unsigned char *view, Stillness *last) noexcept nogil:
        """Answers PINGs, if no thread reads; returns when to check again.

        *view* has VIEW_BYTES bytes. *last* is the result of the last check of an epoll set.
        """
        cdef Py_ssize_t size
        cdef long long delay, due, holds
        if not self.enter():
            return now + FIRST_CHECK_NS  # a thread reads
        delay = self._check_delay(now)
        due = self.read + delay
        if due <= now:
            due = now + delay // 8 if self.gap else self._with_others(now + delay, delay)
            if self._is_still(last):
                self.had = 0
            else:
                size = self._peek(view, VIEW_BYTES)
                if size == self.had:
                    # Nothing has come since the last check, or read.
                    if size > LARGE_PEEK_BYTES:
                        due = now + delay     # each check is expensive
                    if outlook(self.send_buffer.fd, &holds) != CROWDED and (size or self.bytes):
                        self.behind = False
                self.had = size
            self._answer()
        self.due = due
        self.leave()
        return due

    # ------------------------------------------------------------------ frames

    cdef void _scan(self, const unsigned char *p, Py_ssize_t size) noexcept nogil:
        """Parses the next bytes: counts messages, and finds PINGs."""
        cdef WireFrame frame
        cdef const unsigned char *at
        cdef Py_ssize_t available, step, total, needed
        cdef int state
        cdef bint small
        while size > 0 and not self._halted:
            if self._skip > 0:
                step = <Py_ssize_t>min(self._skip, <long long>size)
                self._skip -= step
            else:
                # A frame begins here, or has begun in `_carry`.
                at, available, step = p, size, 0
                if self._carried:
                    step = min(size, CARRY_BYTES - self._carried)
                    memcpy(self._carry + self._carried, p, step)
                    at, available = self._carry, self._carried + step
                state = self._measure(at, available, &frame)
                if state < 0 or (state and frame.payload > <unsigned long long>self.max_size):
                    self._halted = True  # the owner rejects it
                    return
                small = state and PING_BYTES <= frame.payload <= PING_BYTES + PING_CONTEXT_BYTES
                total = frame.length + <Py_ssize_t>frame.size if state else CARRY_BYTES
                needed = CARRY_BYTES if state == 0 else total if small else self._sight(&frame)
                if available < needed:
                    if available >= CARRY_BYTES:
                        self._halted = True
                        return
                    if self._carried == 0:
                        step = size
                        memcpy(self._carry, p, step)
                    self._carried += step
                else:
                    if small and self._parsed - self._carried >= self._known:
                        self._meet(at, &frame)
                        self._known = self._parsed - self._carried + total
                    if self.send_buffer.codec is not None:
                        frame.flags = self.send_buffer.codec.flags_of(at, &frame)
                    # Where the flags stay unknown each frame counts as a message.
                    if frame.flags < 0 or not frame.flags & (FLAG_MORE | FLAG_COMMAND):
                        self.messages += 1
                    step = min(total - self._carried, size)
                    self._skip = total - self._carried - step
                    self._carried = 0
            self._parsed += step
            p += step
            size -= step

    cdef int _measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        if self.send_buffer.codec is None:
            return measure_plain(p, available, frame)
        return self.send_buffer.codec.measure(p, available, frame)

    cdef Py_ssize_t _sight(self, const WireFrame *frame) noexcept nogil:
        """Returns how many bytes of a frame, from its beginning, show its flags."""
        if self.send_buffer.codec is None:
            return 0
        return frame.length + min(self.send_buffer.codec.sight, <Py_ssize_t>frame.size)

    cdef void _meet(self, const unsigned char *p, const WireFrame *frame) noexcept nogil:
        """Notes a PING that is to be answered, if the frame is one."""
        cdef unsigned char clear[MAX_GLANCE_BYTES]
        cdef const unsigned char *body = p + frame.length
        if self.send_buffer.codec is None:
            if not frame.flags & FLAG_COMMAND:
                return
        else:
            if self.send_buffer.codec.glance(p, frame, clear) != FLAG_COMMAND:
                return
            body = clear
        if memcmp(body, b"\4PING", 5) == 0:
            # Of several unanswered PINGs only the newest is answered.
            self.unanswered = <Py_ssize_t>frame.payload - PING_BYTES
            memcpy(self._context, body + PING_BYTES, self.unanswered)
            self.ahead += 1
            self.note_ping(now_ns())
            self._answer()

    cdef bint _is_open(self) noexcept nogil:
        """Returns whether an answer is harmless: as far as is known the peer has not closed."""
        cdef long long holds
        return not self.resets or (not self.behind and outlook(self.send_buffer.fd, &holds) == CLEAR)

    cdef void _answer(self) noexcept nogil:
        """Sends a PONG for the last PING (RFC 37, Connection Heartbeating), unless it has to wait."""
        cdef unsigned char frame[MAX_OVERHEAD_BYTES + PONG_BYTES + PING_CONTEXT_BYTES]
        cdef unsigned char body[PONG_BYTES + PING_CONTEXT_BYTES]
        cdef Py_ssize_t size = self.unanswered
        cdef Py_ssize_t length, whole, sent
        if size < 0 or not self._is_open() or not take_flag(&self.send_buffer._taken):
            return
        if (self.send_buffer.bytes == 0 and not self.send_buffer.stuck and not self.send_buffer.failed
                and self.send_buffer.fd >= 0):
            memcpy(body, b"\4PONG", PONG_BYTES)
            memcpy(body + PONG_BYTES, self._context, size)
            if self.send_buffer.codec is None:
                length = write_header(frame, FLAG_COMMAND, PONG_BYTES + size)
                memcpy(frame + length, body, PONG_BYTES + size)
                whole = length + PONG_BYTES + size
            else:
                whole = self.send_buffer.codec.encode(frame, FLAG_COMMAND, <const char *>body, PONG_BYTES + size)
            if whole > 0:
                sent = send(self.send_buffer.fd, frame, whole, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent == whole:
                    self.unanswered = -1
                    self.send_buffer.total += whole
                elif sent > 0:
                    self.send_buffer.error = EAGAIN
                    self.send_buffer.give_up()  # half a frame: nothing can follow it
        drop_flag(&self.send_buffer._taken)
