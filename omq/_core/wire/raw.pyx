"""The traffic of a connection whose peer does not use ZMTP: bytes pass unchanged both ways."""

# stub: CHUNK: int

cimport cython
from libc.string cimport memcpy

from omq._core.wire.codec cimport Codec, WireFrame
from omq._core.wire.framing cimport FLAG_COMMAND, LONG_HEADER_BYTES, write_long_header

cdef enum:
    CHUNK_BYTES = 32768  # bytes of one read: libzmq's have 8192 (ZMQ_IN_BATCH_SIZE), which takes more system calls

CHUNK = CHUNK_BYTES


@cython.final
@cython.auto_pickle(False)
cdef class RawCodec(Codec):
    """A codec without frames: a message is sent as its bytes, and each read returns a message. Commands are not sent.

    Each read leaves room for a header in front of its bytes, so no byte moves when they become a frame. The background
    thread cannot parse the bytes: those that an absent owner does not read stay in the kernel, and the peer is held
    back.
    """

    def __cinit__(self, *_, **__):
        self.overhead = 0
        self.lead = LONG_HEADER_BYTES
        self.portion = CHUNK_BYTES
        self.watchable = False

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        if flags & FLAG_COMMAND:
            return 0
        memcpy(into, payload, size)
        return size

    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil:
        return 0

    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags):
        return None  # bytes are for one peer, and how many of them have left is unknown

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        if available <= LONG_HEADER_BYTES:
            return 0
        frame.length = LONG_HEADER_BYTES
        frame.size = frame.payload = <unsigned long long>(available - LONG_HEADER_BYTES)
        frame.flags = 0
        frame.as_is = True
        return 1

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        write_long_header(p, 0, <Py_ssize_t>frame.size)
        return Codec.decode(self, p, available, frame)
