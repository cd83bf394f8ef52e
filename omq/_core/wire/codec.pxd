# The form of a connection's traffic on the wire, after its handshake.

from libc.stdint cimport uint64_t
from libc.string cimport memmove

from omq._core.wire.framing cimport (
    FLAG_COMMAND,
    FLAG_MORE,
    LONG_HEADER_BYTES,
    SHORT_HEADER_BYTES,
    MAX_SHORT_BYTES,
    Header,
    parse_header,
    write_header,
)

cdef enum:
    FLAG_OWN = 8               # with FLAG_COMMAND, from `decode` and `finish`: a message between codecs; see `answer`
    FLAGS_UNKNOWN = -1         # WireFrame.flags before the frame is decoded
    MAX_GLANCE_BYTES = 32      # bytes of payload up to which a frame is decoded ahead by `glance`
    NO_GIL_BYTES = 65536       # a larger payload is decoded without the GIL
    MAX_OVERHEAD_BYTES = 1024  # bytes that Codec.overhead may be

cdef struct WireFrame:       # a frame as it came, at some address p
    Py_ssize_t length        # bytes of its header, which have arrived
    uint64_t size            # bytes after its header
    uint64_t payload         # bytes of payload among them: at most, before `decode`
    int flags                # FLAG_MORE, FLAG_COMMAND, or FLAGS_UNKNOWN
    bint as_is               # if it is large: all bytes after the header are the payload; `finish` does nothing
    # Set by `decode`.
    Py_ssize_t whole         # bytes of plain frames that replace it at p
    Py_ssize_t spare         # bytes of commands at their beginning, which readers skip
    Py_ssize_t grown         # bytes by which the arrived bytes have grown


cdef class Codec:
    # Fixed when it is made.
    cdef readonly Py_ssize_t overhead  # bytes around a payload that `encode` may write to
    cdef readonly Py_ssize_t growth    # bytes by which a slab's bytes may grow in `decode`: half a block at most
    cdef readonly bint borrows         # a large payload leaves unchanged, after the bytes that `head` writes
    cdef readonly Py_ssize_t sight     # bytes after a frame's header that `flags_of` needs: 67 at most
    cdef readonly Py_ssize_t lead      # bytes left free in front of those of each read; 0 if it is `watchable`
    cdef readonly Py_ssize_t portion   # bytes of one read at most; 0: as many as there is room for
    cdef readonly bint watchable       # `measure`, `glance` and `encode` serve a thread that never takes the GIL
    # Out.
    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil
    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil
    cdef object exhausted(self)
    cdef bytes closing_frame(self, bint failed)
    cdef int measure_own(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil
    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags)
    # In.
    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil
    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil
    cdef void begin_large(self, const unsigned char *p, Py_ssize_t length) noexcept nogil
    cdef bytes finish(self, bytes body, int *found)
    cdef int glance(self, const unsigned char *p, const WireFrame *frame, unsigned char *into) noexcept nogil
    cdef int flags_of(self, const unsigned char *p, const WireFrame *frame) noexcept nogil
    cdef object answer(self)
    cdef object explain(self, int found)


cdef inline int measure_plain(const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
    """Measures a frame like `Codec.measure`, for connections without a codec."""
    cdef Header header
    cdef int state = parse_header(p, available, &header)
    if state == 1:
        frame.length = header.length
        frame.size = frame.payload = header.size
        frame.flags = header.flags & (FLAG_MORE | FLAG_COMMAND)
        frame.as_is = True
    return state


cdef inline void fill_gap(unsigned char *p, Py_ssize_t size) noexcept nogil:
    """Fills *size* bytes, none or at least 2, with commands that readers skip."""
    cdef Py_ssize_t step
    while size > 0:
        step = min(size, <Py_ssize_t>(SHORT_HEADER_BYTES + MAX_SHORT_BYTES))
        if size - step == 1:
            step -= 1  # no command is that small
        write_header(p, FLAG_COMMAND, step - SHORT_HEADER_BYTES)
        p += step
        size -= step


cdef inline void leave_plain(unsigned char *p, Py_ssize_t available, const unsigned char *payload, Py_ssize_t size, int flags,
                             WireFrame *frame) noexcept nogil:
    """Writes a plain frame for a payload inside a whole frame, for `decode`."""
    cdef int length = SHORT_HEADER_BYTES if size <= MAX_SHORT_BYTES else LONG_HEADER_BYTES
    cdef Py_ssize_t taken = frame.length + <Py_ssize_t>frame.size
    cdef Py_ssize_t spare = taken - length - size
    frame.grown = 0
    if spare < 0 or spare == 1:
        # The bytes after it move up: there is room for that, see Codec.growth.
        frame.grown = 1 if spare == 1 else -spare
        memmove(p + taken + frame.grown, p + taken, available - taken)
        spare += frame.grown
    memmove(p + spare + length, payload, size)
    write_header(p + spare, flags & (FLAG_MORE | FLAG_COMMAND), size)
    fill_gap(p, spare)
    frame.flags = flags
    frame.payload = size
    frame.whole = spare + length + size
    frame.spare = frame.whole if flags & FLAG_COMMAND else spare
