# The stream of frames that a connection has received, and its memory.

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from omq._core.wire.codec cimport Codec
from omq._core.wire.framing cimport Header
from omq._core.wire.pool cimport Pool
from omq._core.wire.send_buffer cimport Part

cdef enum:
    LARGE_FRAME_BYTES = 32768    # the kernel reads a larger body into the bytes object that the user gets
    MAX_MOVED_BYTES = 65536      # bytes of a large body that move into the caller's memory a second time
    LARGE_STEP_BYTES = 1048576   # bytes first allocated for a large body: memory grows with the bytes that arrive
    MAX_COMMAND_BYTES = 8388608  # bytes of a command (a subscription to a long topic is one)
    DEFAULT_MAX_PARTS = 1048576  # parts of a message unless max_parts is set

cdef extern from *:
    """
    #define MESSAGE_CEILING (1LL << 32)
    #define NO_LIMIT 0x7fffffffffffffffLL
    """
    const long long MESSAGE_CEILING  # bytes of an unfinished message that are kept while there is no max_message_size
    const long long NO_LIMIT

cdef enum Scan:
    SCAN_STARVED     # every byte has been parsed
    SCAN_COMMAND     # FrameReader.command_data/_size hold a command's body, valid until the next call
    SCAN_LARGE       # a large frame starts: call start_large, with the GIL
    SCAN_LARGE_DONE  # a large frame is whole: call finish_large, with the GIL
    SCAN_BAD_HEADER
    SCAN_TOO_LARGE
    SCAN_ENDLESS     # the ceiling is reached and the message continues
    SCAN_TOO_MANY_PARTS
    SCAN_COMMAND_TOO_LARGE
    SCAN_OWN         # a message for our codec: Codec.answer, with the GIL
    SCAN_REFUSED     # the codec rejects the bytes: FrameReader.found is for Codec.explain


cdef enum:
    FILL_EOF = 0     # the peer has closed its side
    FILL_ERROR = -1  # FrameReader.error holds the errno
    FILL_EMPTY = -2  # nothing to read now
    FILL_NO_MEMORY = -3

cdef struct Node:
    Node *next               # the node received after this one; owned through the chain
    char *data               # bytes after this struct in the same block; NULL for a large frame
    Py_ssize_t pos           # offset in data of the first unread byte
    Py_ssize_t end           # offset in data after the last byte received
    PyObject *body           # the large frame; strong reference, NULL for a slab and for a frame in a target
    int flags                # FLAG_* of the large frame

cdef struct Run:             # adjacent whole messages in memory, as plain frames
    const char *data
    Py_ssize_t size          # bytes, framing included
    Py_ssize_t count         # messages
    Py_ssize_t body          # bytes of their parts


@cython.final
cdef class FrameReader:
    cdef Pool _pool
    cdef Codec codec                 # decodes arriving bytes; None: they are plain frames
    cdef Py_ssize_t _limit           # bytes that a slab is filled with at most; the rest is room for their growth
    cdef Py_ssize_t _lead            # bytes left free in front of those of each read, for the codec
    cdef Py_ssize_t _portion         # bytes of one read into a slab at most
    cdef Node *_head                 # first unread; owned
    cdef Node *_tail                 # the node where bytes arrive
    cdef Py_ssize_t _scan            # offset in the tail slab of the first byte not yet parsed
    cdef Py_ssize_t _dead            # bytes of handled commands before _scan in the tail slab
    cdef Py_ssize_t _need            # bytes of the frame at _scan, header included, as far as known; 0 unknown
    cdef char *_spare                # a block for the bytes after a large frame; owned
    cdef Node *_large                # the large frame under construction, a node of the chain; NULL: none
    cdef char *_memory               # where it is put together: its body, or the target
    cdef Py_ssize_t _have            # bytes of it that have arrived
    cdef Py_ssize_t _room            # bytes that its memory holds
    cdef uint64_t _size              # bytes of the whole frame
    cdef Py_ssize_t _parts           # parts of the current message so far
    cdef Py_ssize_t complete         # whole messages that can be taken
    cdef Py_ssize_t asked            # bytes that the last fill had room for
    cdef int error                   # errno of the last FILL_ERROR
    cdef int found                   # the codec's number for a refused frame, or the flags of the last large one
    cdef Scan _wrong                 # the fault of a large frame that a codec has finished; SCAN_STARVED: none
    cdef bint _as_is                 # a whole large frame needs no decoding
    cdef char *_target               # the caller's memory for the next message, if that is one large frame, or NULL
    cdef Py_ssize_t _target_size     # bytes
    cdef Node *_aimed                # the large frame in the target, or NULL
    cdef Py_ssize_t _aimed_size      # bytes of that frame when it is whole
    cdef bint _came_back             # the large frame was in a target that was withdrawn
    cdef Header _header              # of the frame that SCAN_LARGE announces
    cdef bint more                   # take_part: another part of the same message follows
    cdef long long max_size          # bytes of a message at most, all parts together
    cdef long long ceiling           # bytes that may have arrived of an unfinished message, whatever size it announces
    cdef uint64_t _left              # bytes that the current message may still have
    cdef Py_ssize_t max_parts        # parts of a message at most
    cdef const char *command_data
    cdef Py_ssize_t command_size
    cdef int slabs(self) noexcept nogil
    cdef Py_ssize_t fill(self, int fd) noexcept nogil
    cdef long long boundary(self) noexcept nogil
    cdef Py_ssize_t unscanned(self, char *into, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t absorb(self, const char *data, Py_ssize_t size) noexcept nogil
    cdef int feed(self, const char *data, Py_ssize_t size) except -1
    cdef void clear(self)
    cdef bint _make_room(self) noexcept nogil
    cdef void _compact(self) noexcept nogil
    cdef void _after_message(self) noexcept nogil
    cdef void _drop_head(self) noexcept nogil
    cdef void _settle(self) noexcept nogil
    cdef Scan scan(self) noexcept nogil
    cdef void decode_with(self, Codec codec) noexcept
    cdef Scan _scan_coded(self) noexcept nogil
    cdef Scan _judge(self, int flags, uint64_t size) noexcept nogil
    cdef Scan _judge_large(self) noexcept nogil
    cdef Scan _refuse(self, uint64_t size) noexcept nogil
    cdef void _count(self, bint more, uint64_t size) noexcept nogil
    cdef object complaint(self, Scan found)
    cdef int start_large(self) except -1
    cdef bint aim(self, char *into, Py_ssize_t size) noexcept
    cdef int withdraw(self) except -1
    cdef bint _fits_target(self, int flags, uint64_t size) noexcept nogil
    cdef object finish_large(self)
    cdef int _resize(self, Py_ssize_t room) except -1
    cdef bint has_large(self, Py_ssize_t size) noexcept nogil
    cdef bint head_more(self) noexcept nogil
    cdef const char *peek(self, Py_ssize_t *size) noexcept nogil
    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) noexcept nogil
    cdef bint view_run(self, Run *run, Py_ssize_t limit) noexcept nogil
    cdef int skip_run(self, const Run *run) noexcept
    cdef object take_part(self)
    cdef object take_short(self)
    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2
    cdef int skip(self) except -1
    cdef const unsigned char *_front(self, Header *header) noexcept nogil
