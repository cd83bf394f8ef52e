"""The send buffer: it encodes frames into a batch, which leaves in as few system calls as possible.

`flush` needs no GIL and touches no Python object: references whose bytes have left wait in `_done` until
`reap`, which the next holder of the GIL calls.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, EPIPE, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from posix.time cimport nanosleep, timespec

from omq._core.wire.pool cimport BLOCK_BYTES, Pool
from omq._core.wire.framing cimport FLAG_LONG, FLAG_MORE, LONG_HEADER_BYTES, Header, parse_header, write_header
from omq._core.wire.codec cimport Codec
from omq._core.wire.loan cimport PyBytes_CheckExact, body_data, body_size
from omq._core.wire.recall cimport recall
from omq._core.clock cimport now_ns
from omq._core.kernel cimport (
    EPOLL_CTL_MOD,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    epoll_ctl,
    epoll_event,
    iovec,
    msghdr,
    send,
    sendmsg,
)
from omq._core.lock cimport drop_flag, pause_gc, store, take_flag, resume_gc

cdef extern from "<sys/socket.h>" nogil:
    int shutdown(int, int)
    int SHUT_RDWR

cdef extern from *:
    """
    #include <poll.h>

    /* recv(2) finds the end only after the last unread byte, and takes no less time. */
    static inline int omq_has_ended(int fd) {
        struct pollfd one = {fd, POLLRDHUP, 0};
        return poll(&one, 1, 0) > 0;
    }
    """
    bint omq_has_ended(int fd) noexcept nogil

cdef extern from "Python.h" nogil:
    # Macros that only read constant fields.
    bint PyTuple_CheckExact(PyObject *)
    Py_ssize_t tuple_size "PyTuple_GET_SIZE"(PyObject *)
    PyObject *tuple_item "PyTuple_GET_ITEM"(PyObject *, Py_ssize_t)

cdef enum:
    END_CHECK_INTERVAL_NS = 100000  # after a check, which is a system call, during which no other is made
    MAX_SEGMENTS_PER_CALL = 64      # segments that one system call takes
    FIRST_SEGMENTS = 16
    MAX_EMPTY_CHECKS = 10           # checks without messages after which the background thread stops checking


@cython.final
@cython.no_gc  # its attributes cannot refer to it
cdef class SendBuffer:
    """Bytes that a connection has accepted and the kernel has not.

    Args:
        pool: The pool for arenas.
    """

    def __cinit__(self, Pool pool not None) -> None:
        self._pool = pool
        self.hwm_granularity = 64
        self.fd = self.poll_fd = -1
        self._append_flag = True

    def __dealloc__(self):
        # No other thread has this buffer any more; and in a forked child the flag may stay set for ever.
        self.shared = False
        self.clear()
        free(self._segments)
        free(self._done)

    cdef void _wait(self) noexcept:
        """Waits for the Flusher, which may be in a system call, without the GIL."""
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = 1000
        with nogil:
            while not take_flag(&self._taken):
                nanosleep(&moment, NULL)

    cdef void encode_with(self, Codec codec) noexcept:
        """Encodes all later frames with *codec*; None: plain frames."""
        self.codec = codec

    cdef Py_ssize_t clear(self) except -1:
        """Drops everything, and returns the number of messages that are lost."""
        cdef Py_ssize_t messages
        cdef int i
        self.hold()
        messages = self.messages
        for i in range(self._first, self._count):
            if self._segments[i].owner != NULL:
                self._done[self._ndone] = self._segments[i].owner
                self._ndone += 1
        self._first = self._count = 0
        self._foreign = False
        self.total -= self.bytes
        self.bytes = self.messages = 0
        self.let_go()
        self.reap()
        return messages

    cdef void _release(self):
        if self._arena != NULL:
            if self._capacity == BLOCK_BYTES:
                self._pool.put(self._arena)
            else:
                free(self._arena)
        self._arena = NULL
        self._capacity = self._used = 0

    cdef void reap(self):
        """Drops the references whose bytes have left, and the arena when nothing waits."""
        if self._ndone or (self._arena != NULL and self._first == self._count):
            self._reap()

    cdef void _reap(self):
        """Drops the references under the flag: another thread may be writing."""
        cdef PyObject *few[FIRST_SEGMENTS]
        cdef int i, n
        while True:
            # Dropping a reference may run any code, so it must not happen under the flag.
            self.hold()
            n = min(self._ndone, <int>FIRST_SEGMENTS)
            self._ndone -= n
            for i in range(n):
                few[i] = self._done[self._ndone + i]
            if self._first == self._count and self._arena != NULL:
                self._release()
            self.let_go()
            for i in range(n):
                Py_DECREF(<object>few[i])
            if n < FIRST_SEGMENTS:
                return

    # ------------------------------------------------------------------ in

    cdef int _reserve(self, Py_ssize_t size) except -1:
        """Makes room for *size* bytes at the end of the arena."""
        cdef Py_ssize_t dead
        cdef int i
        if self._used + size <= self._capacity:
            return 0
        if self._arena == NULL and size <= BLOCK_BYTES:
            self._arena = self._pool.get()
            if self._arena == NULL:
                raise MemoryError()
            self._capacity = BLOCK_BYTES
            return 0
        # The front of the arena may be sent already: move the rest down before asking for more memory.
        dead = self._used
        for i in range(self._first, self._count):
            if self._segments[i].base == NULL:
                dead = self._segments[i].offset - self._segments[i].sent
                break
        if dead > 0 and dead >= self._capacity // 2 and self._used - dead + size <= self._capacity:
            memmove(self._arena, self._arena + dead, self._used - dead)
            for i in range(self._first, self._count):
                if self._segments[i].base == NULL:
                    self._segments[i].offset -= dead
            self._used -= dead
            return 0
        if not self._grow(size, True):
            raise MemoryError()
        return 0

    cdef bint _grow(self, Py_ssize_t size, bint pooled) noexcept nogil:
        """Makes room for *size* bytes in a larger arena; False: no memory. *pooled*: the pool may be used."""
        cdef Py_ssize_t capacity = max(self._capacity * 2, BLOCK_BYTES * 2)
        cdef char *arena
        while capacity < self._used + size:
            capacity *= 2
        arena = <char *>malloc(capacity)
        if arena == NULL:
            return False
        if self._arena != NULL:
            memcpy(arena, self._arena, self._used)
            if pooled and self._capacity == BLOCK_BYTES:
                self._pool.put(self._arena)
            else:
                free(self._arena)
        self._arena = arena
        self._capacity = capacity
        return True

    cdef bint _has_segments(self, int more) noexcept nogil:
        """Makes room for *more* segments; False: no memory."""
        cdef int room = self._room or FIRST_SEGMENTS
        cdef void *memory
        # `_done` has room for the references that wait there and for all segments that are still to be sent.
        while room < self._ndone + self._count - self._first + more:
            room *= 2
        if room > self._room:
            memory = realloc(self._done, room * sizeof(PyObject *))
            if memory == NULL:
                return False
            self._done = <PyObject **>memory
            memory = realloc(self._segments, room * sizeof(Segment))
            if memory == NULL:
                return False
            self._segments = <Segment *>memory
            self._room = room
        if self._count + more > self._room:
            memmove(self._segments, self._segments + self._first, (self._count - self._first) * sizeof(Segment))
            self._count -= self._first
            self._first = 0
        return True

    cdef Segment *_new_segment(self) noexcept nogil:
        """Appends an empty segment, for which there is room."""
        cdef Segment *segment = self._segments + self._count
        memset(segment, 0, sizeof(Segment))
        segment.inside = self._inside
        self._count += 1
        return segment

    cdef Segment *_append(self) except NULL:
        """Appends an empty segment."""
        if not self._has_segments(1):
            raise MemoryError()
        return self._new_segment()

    cdef Segment *_open(self) except NULL:
        """Returns the segment for the next bytes of the arena."""
        cdef Segment *last
        if self._count > self._first:
            last = self._segments + self._count - 1
            if last.base == NULL and last.size < SEGMENT_BYTES and last.messages < self.hwm_granularity:
                return last
        last = self._append()
        last.offset = self._used
        return last

    cdef int put_message(self, const Part *parts, Py_ssize_t count) except -1:
        """Appends all of a message or, if memory is short, nothing: a part would be continued by the next message.

        Memory without an owner must be adopted before the caller returns to its caller.
        """
        if count == 1 and parts.size <= MAX_INLINE_BYTES:
            self._put(parts, 0)  # allocates before it appends anything
        else:
            self._put_several(parts, count)
        self.end_message()
        return 0

    cdef int _put_several(self, const Part *parts, Py_ssize_t count) except -1:
        cdef int segments = self._count - self._first
        cdef Py_ssize_t size = self._segments[self._count - 1].size if segments else 0
        cdef Py_ssize_t unsent = self.bytes
        cdef bint whole = False
        cdef Py_ssize_t i
        try:
            for i in range(count):
                self._inside = i > 0
                self._put(parts + i, FLAG_MORE if i < count - 1 else 0)
            whole = True
        finally:
            self._inside = False
            if not whole:
                self._take_back(segments, size, unsent)
        return 0

    cdef void _take_back(self, int segments, Py_ssize_t size, Py_ssize_t unsent) noexcept:
        """Drops everything after the first *segments*: the last of them had *size* bytes, all had *unsent*."""
        cdef Segment *last
        while self._count - self._first > segments:
            self._count -= 1
            last = self._segments + self._count
            if last.owner != NULL:
                Py_DECREF(<object>last.owner)  # not the last one: the caller has one, or it is bytes
        self.total -= self.bytes - unsent
        self.bytes = unsent
        self._foreign = False
        if segments:
            last = self._segments + self._count - 1
            last.size = size
            if last.base == NULL:
                self._used = last.offset + size
        else:
            self._first = self._count = 0
            self._used = 0

    cdef int _put(self, const Part *part, int flags) except -1:
        """Appends one frame."""
        cdef Py_ssize_t inline = part.size if part.size <= MAX_INLINE_BYTES else 0
        cdef Segment *segment
        cdef unsigned char *p
        cdef int length
        if self.codec is not None:
            if part.size > MAX_INLINE_BYTES and self.codec.borrows:
                return self._put_head(part, flags)
            return self._put_coded(part, flags)
        self._reserve(LONG_HEADER_BYTES + inline)
        segment = self._open()
        p = <unsigned char *>self._arena + self._used
        length = write_header(p, flags, part.size)
        if inline:
            memcpy(p + length, part.data, inline)
        segment.size += length + inline
        self._used += length + inline
        self.bytes += length + inline
        self.total += length + inline
        if part.size > MAX_INLINE_BYTES:
            self._borrow(part)
        return 0

    cdef int _borrow(self, const Part *part) except -1:
        """Appends a payload by reference."""
        cdef Segment *segment = self._append()
        segment.inside = segment.payload = True
        segment.base = <char *>part.data
        segment.size = part.size
        segment.owner = part.owner
        if part.owner != NULL:
            Py_INCREF(<object>part.owner)
            self._lent = self._lent or not PyBytes_CheckExact(part.owner)
        else:
            self._foreign = True
        self.bytes += part.size
        self.total += part.size
        return 0

    cdef int _put_head(self, const Part *part, int flags) except -1:
        """Appends a large payload by reference, after the bytes that the codec puts in front of it."""
        cdef Segment *segment
        cdef Py_ssize_t length
        self._reserve(self.codec.overhead)
        length = self.codec.head(<unsigned char *>self._arena + self._used, flags, part.size)
        if length < 0:
            self.failed = True
            return 0
        if length:
            segment = self._open()
            segment.size += length
            self._used += length
            self.bytes += length
            self.total += length
        return self._borrow(part)

    cdef int _put_coded(self, const Part *part, int flags) except -1:
        """Appends one frame, which the codec writes straight into the arena."""
        cdef Segment *segment
        cdef Py_ssize_t length
        if part.size > MAX_CODED_INLINE_BYTES:
            return self._put_coded_large(part, flags)
        self._reserve(part.size + self.codec.overhead)
        length = self.codec.encode(<unsigned char *>self._arena + self._used, flags, part.data, part.size)
        if length <= 0:
            self.failed |= length < 0
            return 0
        segment = self._open()
        segment.size += length
        self._used += length
        self.bytes += length
        self.total += length
        return 0

    cdef int _put_coded_large(self, const Part *part, int flags) except -1:
        """Appends one frame like `_put_coded`, in memory of its own; other threads may run meanwhile."""
        cdef Codec codec = self.codec
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, part.size + codec.overhead)
        cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(frame)
        cdef Segment *segment
        cdef Py_ssize_t length
        if self.waiting is not None and self.waiting.kept_out:
            length = codec.encode(p, flags, part.data, part.size)  # the background thread must not wait for the GIL
        else:
            with nogil:
                length = codec.encode(p, flags, part.data, part.size)
        if length <= 0:
            self.failed |= length < 0
            return 0
        segment = self._append()
        segment.base = <char *>p
        segment.size = length
        segment.owner = <PyObject *>frame
        Py_INCREF(frame)
        self.bytes += length
        self.total += length
        return 0

    cdef int put_frames(self, const char *data, Py_ssize_t size) except -1:
        """Appends whole plain frames: unchanged, or encoded one by one."""
        cdef Header header
        cdef Part part
        if self.codec is None:
            return self.copy(data, size)
        while parse_header(<const unsigned char *>data, size, &header) == 1:
            part.data = data + header.length
            part.size = <Py_ssize_t>header.size
            part.owner = NULL
            self._put_coded(&part, header.flags & ~FLAG_LONG)
            data += header.length + part.size
            size -= header.length + part.size
        return 0

    cdef int copy(self, const char *data, Py_ssize_t size) except -1:
        """Appends bytes that are encoded already."""
        cdef Segment *segment
        self._reserve(size)
        segment = self._open()
        memcpy(self._arena + self._used, data, size)
        segment.size += size
        self._used += size
        self.bytes += size
        self.total += size
        return 0

    cdef int copy_run(self, const char *data, Py_ssize_t size, int messages) except -1:
        """Appends whole messages that are encoded already, as plain frames; there is no codec."""
        cdef Segment *segment
        self._reserve(size)
        segment = self._open()
        if segment.messages and segment.messages + messages > self.hwm_granularity:
            segment = self._append()
            segment.offset = self._used
        memcpy(self._arena + self._used, data, size)
        segment.messages += messages
        self.messages += messages
        segment.size += size
        self._used += size
        self.bytes += size
        self.total += size
        return 0

    cdef void end_message(self) noexcept:
        if self._count:  # otherwise the codec has sent nothing for it
            self._segments[self._count - 1].messages += 1
            self.messages += 1

    cdef int adopt(self) except -1:
        """Copies unsent bytes of the caller's memory, which is not ours once the call returns."""
        cdef int i
        cdef Segment *segment
        if not self._foreign:
            return 0
        for i in range(self._first, self._count):
            segment = self._segments + i
            if segment.base != NULL and segment.owner == NULL:
                body = PyBytes_FromStringAndSize(segment.base, segment.size)
                Py_INCREF(body)
                segment.owner = <PyObject *>body
                segment.base = PyBytes_AS_STRING(body)
        self._foreign = False
        return 0

    # ------------------------------------------------------------------ back

    cdef list reclaim(self):
        """Takes back the messages of which nothing has left, in order: each is bytes, or a tuple of its parts.

        The rest of a partly sent message or command stays, and may still be written. Later commands are dropped, and so
        are frames that a codec cannot recover.
        """
        cdef list messages = []
        cdef int at
        cdef Py_ssize_t end
        cdef bint is_message
        self.hold()
        self.waiting = None
        pause_gc()  # the collector would run any code under the flag
        try:
            if self._first < self._count:
                is_message = recall(self._segments + self._first, self._count - self._first, self._arena, self.codec,
                                    messages, &at, &end)
                self._cut(self._first + at, end, is_message)
            self.looks = False
        finally:
            resume_gc()
            self.let_go()
        self._reap()
        return messages

    cdef void _cut(self, int at, Py_ssize_t end, bint is_message) noexcept:
        """Drops everything after *end*, the offset in segment *at* where a message or a command ends."""
        cdef Segment *last = self._segments + at
        cdef Py_ssize_t left = 0
        cdef int i
        cdef int keep = at
        for i in range(self._first, at):
            self._segments[i].messages = 0  # they have left: only the rest of a message stays
        if end > last.sent:
            last.size = end - last.sent
            last.messages = is_message
            keep += 1
        for i in range(keep, self._count):
            if self._segments[i].owner != NULL:
                self._done[self._ndone] = self._segments[i].owner
                self._ndone += 1
        self._count = keep
        self.messages = 0
        for i in range(self._first, self._count):
            left += self._segments[i].size
            self.messages += self._segments[i].messages
        self.total -= self.bytes - left
        self.bytes = left
        self._foreign = False
        if left == 0:
            self._first = self._count = 0
            self._used = 0

    # ------------------------------------------------------------------ out

    cdef int flush(self, int fd, bint lets_append=False) noexcept nogil:
        """Writes the batch, as far as the kernel takes it; returns FLUSH_*.

        FLUSH_ENDED is found only if the batch `looks`. It leaves the batch to its owner, which must `reclaim` it: the
        epoll set reports the peer's end, too.

        Args:
            fd: The descriptor.
            lets_append: While this thread is in a system call another one may append in few steps, by `_append_flag`,
                so that a publisher need not wait. Those messages stay in the batch.
        """
        cdef iovec vector[MAX_SEGMENTS_PER_CALL]
        cdef msghdr message
        cdef Segment *segment
        cdef char *base
        cdef Py_ssize_t total, got
        cdef Py_ssize_t left = self.bytes
        cdef int i, n, error
        if self.looks and self._first < self._count and self._finds_end(fd):
            return FLUSH_ENDED
        memset(&message, 0, sizeof(message))
        while self._first < self._count:
            n = 0
            total = 0
            for i in range(self._first, self._count):
                segment = self._segments + i
                base = segment.base if segment.base != NULL else self._arena + segment.offset
                if n > 0 and <char *>vector[n - 1].iov_base + vector[n - 1].iov_len == base:
                    vector[n - 1].iov_len += segment.size
                elif n == MAX_SEGMENTS_PER_CALL:
                    break
                else:
                    vector[n].iov_base = base
                    vector[n].iov_len = segment.size
                    n += 1
                total += segment.size
            if lets_append:
                drop_flag(&self._append_flag)
            if n == 1:
                got = send(fd, vector[0].iov_base, vector[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
            else:
                message.msg_iov = vector
                message.msg_iovlen = n
                got = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            error = errno
            if lets_append:
                self._stop_appending()
            if got < 0:
                if error == EINTR:
                    continue
                if error == EAGAIN:
                    return FLUSH_BLOCKED
                self.error = error
                return FLUSH_ERROR
            self._sent(got)
            if got < total:
                return FLUSH_BLOCKED
            left -= got
            if left <= 0:
                break
        return FLUSH_DONE

    cdef int push(self, int fd) noexcept nogil:
        """Writes like `flush`, for the owner; the epoll set watches for room while the kernel has none."""
        cdef int status = self.flush(fd)
        if status == FLUSH_DONE:
            self.stuck = False
            self.want(self.interest & ~EPOLLOUT)
        elif status == FLUSH_BLOCKED:
            self.want(self.interest | EPOLLOUT)
        return status

    cdef bint _finds_end(self, int fd) noexcept nogil:
        """Returns whether the peer has closed its side. TCP accepts later writes, but their bytes are lost."""
        cdef long long now
        if not self.ended:
            now = now_ns()
            if now - self.looked < END_CHECK_INTERVAL_NS:
                return False
            self.looked = now
            self.ended = omq_has_ended(fd)
        if self.ended:
            self.stuck = True  # so that the next sender finds it
        return self.ended

    cdef void _stop_appending(self) noexcept nogil:
        """Waits until the appending thread has finished its message, which takes some nanoseconds."""
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = 1000
        while not take_flag(&self._append_flag):
            nanosleep(&moment, NULL)

    cdef void _sent(self, Py_ssize_t size) noexcept nogil:
        cdef Segment *segment
        self.bytes -= size
        while self._first < self._count:
            segment = self._segments + self._first
            if segment.size > size:
                if segment.base != NULL:
                    segment.base += size
                else:
                    segment.offset += size
                segment.size -= size
                segment.sent += size
                return
            size -= segment.size
            self.messages -= segment.messages
            if segment.owner != NULL:
                self._done[self._ndone] = segment.owner
                self._ndone += 1
                segment.owner = NULL
            self._first += 1
        self._first = self._count = 0
        self._used = 0

    cdef int want(self, unsigned int interest) noexcept nogil:
        """Changes the events that the epoll set watches for; returns -1 on failure."""
        cdef epoll_event event
        if interest == self.interest:
            return 0
        store(&self.interest, interest)
        if self.poll_fd < 0 or self.fd < 0:
            return 0
        event.events = interest
        event.data.u64 = self.ticket
        return epoll_ctl(self.poll_fd, EPOLL_CTL_MOD, self.fd, &event)

    cdef void give_up(self) noexcept nogil:
        """Gives up after a failed write: there may never be another write, so the reading side must find the end."""
        self.failed = True
        if self.error != EPIPE and self.fd >= 0:  # with EPIPE the end has arrived already
            shutdown(self.fd, SHUT_RDWR)

    cdef bint flush_late(self, long long now, long long delay) noexcept nogil:
        """Writes a batch that its caller left, on the Flusher's thread; returns whether to check again.

        Args:
            now: Nanoseconds on the monotonic clock.
            delay: Nanoseconds since the last write during which a growing batch is left to its caller. So is one
                that this thread has written within that time: the write may have given the caller's core to a receiver.
        """
        cdef bint again = False
        cdef bint idle
        cdef int status
        if not take_flag(&self._taken):
            return True  # the caller works on it
        idle = self.bytes == 0 or self.stuck
        if self.fd < 0 or self.failed:
            pass
        elif now - self.last_full < STREAM_NS and (idle or self.total != self._seen):
            # A stream, whose sender fills its batches by itself: a write here would take a core from it or its receiver.
            again = True
            self._seen = self.total
        elif not idle:
            if self.total == self._seen and now - self._late >= delay:
                delay = SPARSE_NS
            if now - self.last_write < delay:
                again = True  # the caller is still sending and writes by itself
                self._seen = self.total
            else:
                status = self.flush(self.fd, self.codec is None)
                self.last_write = self._late = now
                again = status == FLUSH_DONE and self.bytes > 0
                if status == FLUSH_BLOCKED:
                    self.stuck = True
                    self.want(self.interest | EPOLLOUT)
                elif status == FLUSH_ERROR:
                    self.give_up()
        self.queued = again
        drop_flag(&self._taken)
        return again

    cdef Py_ssize_t flush_on(self) noexcept nogil:
        """Writes a blocked batch, and waiting messages, on the background thread; returns the number of bytes."""
        cdef long long before
        if not take_flag(&self._taken):
            return 0  # the caller works on it
        before = self.total - self.bytes
        if self.fd >= 0 and not self.failed:
            if self.bytes:
                self._write_on()
            while self.bytes == 0 and not self.failed and self._take_waiting():
                self._write_on()
        before = self.total - self.bytes - before
        drop_flag(&self._taken)
        return <Py_ssize_t>before

    cdef bint _take_waiting(self) noexcept nogil:
        """Fills the empty batch with messages that wait for a peer with room; False: no message waits."""
        cdef PyObject *message
        if self.waiting is None or (self.codec is not None and not self.codec.watchable):
            return False
        if not self.waiting.enter_quickly():
            return False
        while self.bytes < BATCH_BYTES and not self.failed:
            message = self.waiting.oldest()
            if message == NULL or not self._put_owned(message):
                break
            self.waiting.hand_over()
            store(&self.handed, self.handed + 1)
        self.waiting.leave()
        return self.bytes > 0

    cdef bint _put_owned(self, PyObject *message) noexcept nogil:
        """Appends a waiting message like `put_message`, and takes over the reference; False: no memory."""
        cdef Py_ssize_t count, i
        cdef bint whole
        if not PyTuple_CheckExact(message):
            whole = self._put_owned_part(message, 0, True)
        else:
            count = tuple_size(message)
            # For all of them at once: the parts of a message that has no room stay together.
            whole = self._has_segments(<int>(2 * count))
            for i in range(count):
                if not whole:
                    break
                whole = self._put_owned_part(tuple_item(message, i), FLAG_MORE if i < count - 1 else 0, i == 0)
            self._inside = False
        if not whole:
            return False
        self._segments[self._count - 1].owner = message
        self._segments[self._count - 1].messages += 1
        self.messages += 1
        return True

    cdef bint _put_owned_part(self, PyObject *part, int flags, bint first) noexcept nogil:
        """Appends a part like `_put`. A message begins in a segment of its own: its last one gets the reference."""
        cdef Py_ssize_t size = body_size(part)
        cdef bint apart = size > MAX_INLINE_BYTES and (self.codec is None or self.codec.borrows)
        cdef Py_ssize_t most = (
            (LONG_HEADER_BYTES if self.codec is None else self.codec.overhead) + (0 if apart else size)
        )
        cdef Py_ssize_t length
        cdef Segment *segment
        cdef unsigned char *p
        if not self._has_segments(2) or (self._used + most > self._capacity and not self._grow(most, False)):
            self.failed = self.failed or not first  # the peer must not get half of a message
            return False
        self._inside = not first
        p = <unsigned char *>self._arena + self._used
        if self.codec is None:
            length = write_header(p, flags, size)
            if not apart:
                memcpy(p + length, body_data(part), size)
                length += size
        elif apart:
            length = self.codec.head(p, flags, size)
        else:
            length = self.codec.encode(p, flags, body_data(part), size)
        if length < 0:
            self.failed = True
            return False
        if first or self._segments[self._count - 1].base != NULL:
            segment = self._new_segment()
            segment.offset = self._used
        else:
            segment = self._segments + self._count - 1
        segment.size += length
        self._used += length
        if apart:
            segment = self._new_segment()
            segment.inside = segment.payload = True
            segment.base = <char *>body_data(part)
            segment.size = size
            length += size
        self.bytes += length
        self.total += length
        return True

    cdef bint flush_gathered(self) noexcept nogil:
        """Writes messages that gather while their loop's turn does not end, on the background thread.

        Returns:
            Whether to check again in a while.
        """
        cdef long long sent
        cdef bint again = True
        if not take_flag(&self._taken):
            return True  # the caller works on it
        sent = self.total - self.bytes
        if self.fd < 0 or self.failed:
            again = False
        elif self.bytes == 0 and not (self._idle and not self.stuck and self._take_waiting()):
            self._idle += 1
            again = self._idle < MAX_EMPTY_CHECKS
        else:
            # The waiting messages are not in a batch: the turn that should move them does not come.
            if (self._gathered or self._idle) and sent == self._sent_before:
                self._write_on()
                while self.bytes == 0 and not self.failed and self._take_waiting():
                    self._write_on()
            self._idle = 0
        self._gathered = self.bytes > 0
        self._sent_before = self.total - self.bytes
        if not again:
            self._idle = 0
            self.noted = False
        drop_flag(&self._taken)
        return again

    cdef void _write_on(self) noexcept nogil:
        """Writes the batch for an owner that is away."""
        cdef int status = self.flush(self.fd, self.codec is None)
        if status == FLUSH_BLOCKED:
            self.stuck = True
            self.want(self.interest | EPOLLOUT)
        elif status == FLUSH_ERROR:
            self.give_up()
