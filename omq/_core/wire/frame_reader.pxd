# The stream of frames that a connection has received.

cimport cython
from libc.stdint cimport uint64_t

from omq._core.wire.slab_list cimport SlabList, Node
from omq._core.wire.framing cimport Header
from omq._core.wire.codec cimport Codec, WireFrame

cdef enum:
    LARGE_FRAME = 32768      # a body above this is read by the kernel into the bytes object that the user gets
    LARGE_STEP = 1048576     # bytes first allocated for a large body: memory grows with what arrives
    COMMAND_LIMIT = 8388608  # bytes a command may have (a subscription to a long topic is one)
    PARTS_CEILING = 1048576  # parts a message may have unless max_parts says otherwise

cdef extern from *:
    """
    #define MESSAGE_CEILING (1LL << 32)
    #define NO_LIMIT 0x7fffffffffffffffLL
    """
    const long long MESSAGE_CEILING  # bytes of an unfinished message that are kept while there is no max_message_size
    const long long NO_LIMIT

cdef enum Scan:
    SCAN_STARVED             # every byte is looked at
    SCAN_COMMAND             # FrameReader.command_data/_size hold a command's body, valid until the next call
    SCAN_LARGE               # a large frame starts: call start_large, with the GIL
    SCAN_LARGE_DONE          # a large frame is whole: call finish_large, with the GIL
    SCAN_BAD_HEADER
    SCAN_TOO_LARGE
    SCAN_ENDLESS             # the ceiling is reached and the message goes on
    SCAN_TOO_MANY_PARTS
    SCAN_COMMAND_TOO_LARGE
    SCAN_OWN                 # the codec has a word for the other one: Codec.answer, with the GIL
    SCAN_REFUSED             # the codec refuses what has arrived: FrameReader.found is for Codec.explain


@cython.final
cdef class FrameReader(SlabList):
    cdef int found                   # what the codec has said of a frame that it refuses, or the flags of the last large one
    cdef Scan _wrong                 # what is wrong with a large frame that a codec has finished; SCAN_STARVED: nothing
    cdef bint _as_is                 # nothing is to be done to a large frame when it is whole
    cdef char *_target               # the caller's memory for the next message, if that is one large frame; NULL: none
    cdef Py_ssize_t _target_size  # bytes
    cdef Node *_aimed                # the large frame that stands in the target; NULL: none
    cdef Py_ssize_t _aimed_size  # bytes that it has, or will have
    cdef Header _header              # of the frame that SCAN_LARGE announces
    cdef bint more                   # take_part: another part of the same message follows
    cdef long long max_size  # bytes a message may have, all parts together
    cdef long long ceiling           # bytes that may have arrived of an unfinished message, whatever it announces
    cdef uint64_t _left              # bytes that the message under way may still have
    cdef Py_ssize_t max_parts  # parts a message may have
    cdef const char *command_data
    cdef Py_ssize_t command_size
    cdef Scan scan(self) noexcept nogil
    cdef void decode_with(self, Codec codec) noexcept
    cdef Scan _scan_coded(self) noexcept nogil
    cdef Scan _judge(self, int flags, uint64_t size) noexcept nogil
    cdef Scan _judge_large(self) noexcept nogil
    cdef Scan _refuse(self, uint64_t size) noexcept nogil
    cdef void _count(self, bint more, uint64_t size) noexcept nogil
    cdef int start_large(self) except -1
    cdef bint aim(self, char *into, Py_ssize_t size) noexcept
    cdef int withdraw(self) except -1
    cdef bint _fits_target(self, int flags, uint64_t size) noexcept nogil
    cdef object finish_large(self)
    cdef int _resize(self, Py_ssize_t room) except -1
    cdef bint head_more(self) noexcept nogil
    cdef const char *peek(self, Py_ssize_t *size) noexcept nogil
    cdef object take_part(self)
    cdef object take_short(self)
    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2
    cdef int skip(self) except -1
    cdef const unsigned char *_front(self, Header *header) noexcept nogil
