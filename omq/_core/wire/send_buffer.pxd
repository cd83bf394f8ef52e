# Bytes that a connection has accepted and the kernel has not: copies in an arena, large payloads by reference.

cimport cython
from cpython.object cimport PyObject

from omq._core.wire.pool cimport Pool
from omq._core.wire.segment cimport Segment
from omq._core.wire.framing cimport LONG_HEADER_BYTES, write_header
from omq._core.wire.codec cimport Codec
from omq._core.wire.waiting cimport WaitingMessages
from omq._core.lock cimport drop_flag, take_flag
from libc.string cimport memcpy, memset

cdef enum:
    MAX_INLINE_BYTES = 4096         # a payload up to this is copied, a larger one is borrowed
    PACKET_BYTES = 65483            # of a packet over loopback; a rest would make one more, with a wake-up
    BATCH_BYTES = 61376             # a batch of this size leaves: with one more copied message it is still one packet
    BATCH_MESSAGES = 256            # messages at which a batch leaves
    SEGMENT_BYTES = 8192            # a larger arena segment is not extended
    MAX_CODED_INLINE_BYTES = 65536  # a codec encodes a payload up to this in the arena, a larger one in its own memory
    STACK_PARTS = 16                # parts of a message for which no memory is allocated
    SPARSE_NS = 20000               # since the last write, after which a message is written at once
    STREAM_NS = 400000              # since a full batch left, while a growing batch is left to its caller

cdef enum:
    FLUSH_DONE = 0     # the kernel has everything
    FLUSH_BLOCKED = 1  # the kernel has taken a part of it
    FLUSH_ERROR = -1   # SendBuffer.error holds the errno
    FLUSH_NOTHING = 2  # nothing was tried
    FLUSH_ENDED = 3    # the peer's end has arrived: nothing was written, see `reclaim`

cdef struct Part:            # one part of an outgoing message; valid during the call only
    const char *data
    Py_ssize_t size          # bytes
    PyObject *owner          # bytes that contain data, or a Loan of it; NULL: the caller's memory


@cython.final
cdef class SendBuffer:
    cdef Pool _pool
    cdef Codec codec                 # encodes all frames; None: they leave as plain ones
    cdef char *_arena                # owned; a pooled block while _capacity is BLOCK_BYTES
    cdef Py_ssize_t _capacity        # bytes
    cdef Py_ssize_t _used            # bytes
    cdef Segment *_segments          # owned
    cdef int _room                   # segments there is memory for
    cdef int _first                  # index of the first segment that is not sent
    cdef int _count                  # index after the last segment
    cdef PyObject **_done            # references to drop, as many as _room; owned
    cdef int _ndone
    cdef bint _foreign               # a segment is in the caller's memory
    cdef bint _lent                  # the last message has a Loan, whose end the caller waits for
    cdef bint _inside                # the next frame continues a message
    cdef Py_ssize_t bytes            # not sent
    cdef long long total             # bytes ever put in, except for those that were dropped
    cdef Py_ssize_t messages         # not wholly sent: those of a segment count until its last byte has left
    cdef int hwm_granularity         # messages that a segment has at most: how exact `messages` is
    cdef int error                   # errno of the last FLUSH_ERROR
    # Fields for threads without the GIL; guarded by the flag where `shared`.
    cdef int _taken                  # atomic flag: a thread works on the batch
    cdef int _append_flag            # atomic flag: free while the Flusher is in a system call: its holder may append
    cdef bint shared                 # a Flusher, or the background thread, may write the batch too
    cdef bint queued                 # the Flusher has the batch in its list
    cdef bint stuck                  # the Flusher found the kernel full, or the end; the epoll set reports changes
    cdef bint failed                 # the Flusher got an error
    cdef bint looks                  # a write first checks whether the peer's end has arrived
    cdef bint ended                  # it has
    cdef long long looked            # nanoseconds on the monotonic clock, at the last check that found no end
    cdef int fd                      # the connection's descriptor; -1 none, or closed
    cdef int poll_fd                 # the epoll set of its socket; -1 before it has joined
    cdef long long interest          # EPOLL* watched for; atomic: it is read without the flag
    cdef unsigned long long ticket   # the number that comes with an event of the epoll set
    cdef int low_water               # SO_RCVLOWAT: bytes from which it counts as readable; 0: any; guarded as reads are
    cdef long long last_write        # nanoseconds on the monotonic clock
    cdef long long last_full         # likewise, when the caller last wrote the batch because it was full
    cdef long long _late             # likewise, when the Flusher last wrote the batch
    cdef long long _seen             # `total` at the Flusher's last check
    cdef WaitingMessages waiting     # the background thread continues with its messages; None: it does not
    cdef long long handed            # messages that it has taken and the owner has not counted yet; atomic
    cdef bint noted                  # the background thread knows that messages gather here
    cdef void *watched               # its set in the background thread, borrowed; NULL: none; under the thread's mutex
    cdef bint _gathered              # the last check found gathered messages
    cdef int _idle                   # its checks in a row that found none
    cdef long long _sent_before      # bytes that had left at its last check
    cdef void _wait(self) noexcept
    cdef void _stop_appending(self) noexcept nogil
    cdef int want(self, unsigned int interest) noexcept nogil
    cdef void give_up(self) noexcept nogil
    cdef bint flush_late(self, long long now, long long delay) noexcept nogil
    cdef Py_ssize_t flush_on(self) noexcept nogil
    cdef bint flush_gathered(self) noexcept nogil
    cdef void _write_on(self) noexcept nogil
    cdef bint _take_waiting(self) noexcept nogil
    cdef bint _put_owned(self, PyObject *message) noexcept nogil
    cdef bint _put_owned_part(self, PyObject *part, int flags, bint first) noexcept nogil
    cdef bint _grow(self, Py_ssize_t size, bint pooled) noexcept nogil
    cdef bint _has_segments(self, int more) noexcept nogil
    cdef Segment *_new_segment(self) noexcept nogil
    cdef int put_message(self, const Part *parts, Py_ssize_t count) except -1
    cdef int _put_several(self, const Part *parts, Py_ssize_t count) except -1
    cdef int _put(self, const Part *part, int flags) except -1
    cdef void _take_back(self, int segments, Py_ssize_t size, Py_ssize_t unsent) noexcept
    cdef void encode_with(self, Codec codec) noexcept
    cdef int _put_coded(self, const Part *part, int flags) except -1
    cdef int _put_coded_large(self, const Part *part, int flags) except -1
    cdef int _put_head(self, const Part *part, int flags) except -1
    cdef int _borrow(self, const Part *part) except -1
    cdef int put_frames(self, const char *data, Py_ssize_t size) except -1
    cdef int copy(self, const char *data, Py_ssize_t size) except -1
    cdef int copy_run(self, const char *data, Py_ssize_t size, int messages) except -1
    cdef void end_message(self) noexcept
    cdef int flush(self, int fd, bint lets_append=*) noexcept nogil
    cdef int push(self, int fd) noexcept nogil
    cdef bint _finds_end(self, int fd) noexcept nogil
    cdef list reclaim(self)
    cdef void _cut(self, int at, Py_ssize_t end, bint is_message) noexcept
    cdef int adopt(self) except -1
    cdef void reap(self)
    cdef void _reap(self)
    cdef Py_ssize_t clear(self) except -1
    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef void _release(self)
    cdef Segment *_append(self) except NULL
    cdef Segment *_open(self) except NULL
    cdef void _sent(self, Py_ssize_t size) noexcept nogil

    cdef inline void hold(self) noexcept:
        """Keeps the Flusher out, where there is one."""
        if self.shared and not take_flag(&self._taken):
            self._wait()

    cdef inline void let_go(self) noexcept:
        if self.shared:
            drop_flag(&self._taken)

    cdef inline bint next_overflows(self) noexcept nogil:
        """Returns whether one more message like those of the batch would be too much for a packet."""
        return self.messages > 1 and self.bytes + self.bytes // self.messages > PACKET_BYTES

    cdef inline int *hold_to_append(self) noexcept:
        """Keeps the Flusher out like `hold`, for `append` and `append_encoded`; returns the flag to drop afterwards.

        NULL: the Flusher is at work, and not in a system call.
        """
        if not self.shared or take_flag(&self._taken):
            return &self._taken
        return &self._append_flag if take_flag(&self._append_flag) else NULL

    cdef inline Segment *_behind_others(self, Py_ssize_t size) noexcept:
        """Returns the segment for a message after others; NULL if memory would move, or more steps are needed."""
        cdef Segment *last
        if self._used + size > self._capacity or self._first == self._count:
            return NULL
        last = self._segments + self._count - 1
        if last.base != NULL or last.size >= SEGMENT_BYTES or last.messages >= self.hwm_granularity:
            if self._count == self._room or self._ndone + self._count - self._first >= self._room:
                return NULL
            last += 1
            memset(last, 0, sizeof(Segment))
            last.offset = self._used
            self._count += 1
        return last

    cdef inline bint append(self, const Part *part) noexcept:
        """Appends a message of one part after others, in few steps; False if more steps are needed."""
        cdef Segment *last
        cdef char *p
        cdef Py_ssize_t size
        if part.size > MAX_INLINE_BYTES:
            return False
        last = self._behind_others((LONG_HEADER_BYTES if self.codec is None else self.codec.overhead) + part.size)
        if last == NULL:
            return False
        p = self._arena + self._used
        if self.codec is None:
            size = write_header(<unsigned char *>p, 0, part.size)
            memcpy(p + size, part.data, part.size)
            size += part.size
        else:
            size = self.codec.encode(<unsigned char *>p, 0, part.data, part.size)
            if size <= 0:
                self._drop_empty(last)
                return False
        self._count_in(last, size)
        return True

    cdef inline void _drop_empty(self, const Segment *last) noexcept:
        """Removes an empty segment that `_behind_others` has made."""
        if last.size == 0:
            self._count -= 1

    cdef inline bint append_encoded(self, const char *data, Py_ssize_t size) noexcept:
        """Appends a whole encoded message, in plain frames, in few steps; False if more steps are needed."""
        cdef Segment *last = self._behind_others(size)
        if last == NULL:
            return False
        memcpy(self._arena + self._used, data, size)
        self._count_in(last, size)
        return True

    cdef inline void _count_in(self, Segment *last, Py_ssize_t size) noexcept:
        """Counts a message of *size* bytes, which comes after the last segment's."""
        last.size += size
        last.messages += 1
        self._used += size
        self.bytes += size
        self.total += size
        self.messages += 1
