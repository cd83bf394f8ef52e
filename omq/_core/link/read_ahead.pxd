# Bytes of one connection that a thread without the GIL has read, and PINGs that it has answered.

cimport cython

from omq._core.wire.codec cimport WireFrame
from omq._core.wire.framing cimport PING_CONTEXT_BYTES
from omq._core.wire.frame_reader cimport FrameReader
from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.lock cimport drop_flag, take_flag

cdef enum:
    VIEW_BYTES = 262144        # bytes of a connection that are peeked at in the kernel at once
    FIRST_CHECK_NS = 50000000  # silence after which a new connection is checked for its first PING
    CARRY_BYTES = 128          # bytes of a frame that are kept between two reads: more than a PING's frame has

cdef extern from *:
    """
    #define NEVER 0x7fffffffffffffffLL
    """
    const long long NEVER


cdef struct Budget:          # memory that all connections of a context share
    long long used           # bytes that they have read ahead; atomic
    long long most           # bytes that they may read ahead


cdef struct Stillness:
    int poll_fd              # an epoll set; -1: none
    bint still               # nothing is unread on the descriptors that it watches


cdef struct Chunk:           # bytes in order of arrival, after this struct in the same mapping
    Chunk *next
    Py_ssize_t size          # bytes of the mapping, this struct included
    Py_ssize_t pos           # offset of the first byte that was not passed on
    Py_ssize_t end           # offset after the last byte


@cython.final
cdef class ReadAhead:
    cdef SendBuffer send_buffer      # for answers; its descriptor and its codec are the connection's
    cdef Budget *budget              # that of the background thread; NULL: nothing is read ahead
    # Guarded by the flag; atomic fields are also read without it, and `hwm` is also set without it.
    cdef int _taken                  # atomic flag: a thread reads the descriptor, or parses its bytes
    cdef Chunk *_first               # bytes that were read ahead; owned
    cdef Chunk *_last
    cdef long long bytes             # bytes in there; atomic
    cdef long long hwm               # messages that may wait in all; 0: no bound; atomic
    cdef Py_ssize_t limit            # bytes that may be read ahead
    cdef Py_ssize_t waiting          # messages that waited at the connection's last read
    cdef Py_ssize_t messages         # messages that have begun after those
    cdef long long max_size          # bytes of the largest frame that is read ahead
    # Positions count the bytes of the stream.
    cdef long long _head             # the first byte that is unread in the kernel
    cdef long long _parsed           # the first byte that was not parsed
    cdef long long _known            # frames that begin before this one were already searched for PINGs
    cdef long long _skip             # bytes at _parsed that belong to a parsed frame
    cdef unsigned char _carry[CARRY_BYTES]  # the beginning of the frame at _parsed
    cdef Py_ssize_t _carried         # bytes in there
    cdef bint _halted                # only the owner can judge the next bytes: nothing after them is read ahead
    cdef bint resets                 # a write to a peer that has closed would destroy bytes that it has sent
    cdef bint behind                 # our kernel had no room: the peer's may hold more, and it may have closed
    cdef long long crowded           # nanoseconds on the monotonic clock, when our kernel had no room, or was not emptied
    cdef Py_ssize_t had              # bytes in the kernel at the last check
    cdef long long ahead             # answered PINGs, including due answers, that are still to be read
    cdef unsigned char _context[PING_CONTEXT_BYTES]  # of the PING that is still to be answered
    cdef Py_ssize_t unanswered       # bytes of that context; -1: no PING to answer
    cdef long long begun             # nanoseconds on the monotonic clock, when the connection was made
    cdef long long read              # likewise, when bytes were last read
    cdef long long pinged            # likewise, when the last PING was read, or found; 0: none
    cdef long long gap               # nanoseconds between two PINGs, as far as is known; 0: unknown
    cdef long long due               # likewise, when to check again
    cdef void begin(self) noexcept
    cdef void reset(self, FrameReader frame_reader) noexcept
    cdef void taken_in(self, Py_ssize_t size) noexcept nogil
    cdef void note_ping(self, long long now) noexcept nogil
    cdef Py_ssize_t pass_on(self, FrameReader frame_reader) noexcept nogil
    cdef void clear(self) noexcept nogil
    cdef bint is_full(self) noexcept nogil
    cdef char *_room(self, Py_ssize_t *room) noexcept nogil
    cdef Py_ssize_t take(self, long long now, unsigned char *view) noexcept nogil
    cdef Py_ssize_t _peek(self, unsigned char *view, Py_ssize_t size) noexcept nogil
    cdef long long _check_delay(self, long long now) noexcept nogil
    cdef long long _with_others(self, long long due, long long delay) noexcept nogil
    cdef bint _is_still(self, Stillness *last) noexcept nogil
    cdef long long look(self, long long now, unsigned char *view, Stillness *last) noexcept nogil
    cdef void _scan(self, const unsigned char *p, Py_ssize_t size) noexcept nogil
    cdef int _measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil
    cdef Py_ssize_t _sight(self, const WireFrame *frame) noexcept nogil
    cdef void _meet(self, const unsigned char *p, const WireFrame *frame) noexcept nogil
    cdef bint _is_open(self) noexcept nogil
    cdef void _answer(self) noexcept nogil

    cdef inline bint enter(self) noexcept nogil:
        return take_flag(&self._taken)

    cdef inline void leave(self) noexcept nogil:
        drop_flag(&self._taken)
