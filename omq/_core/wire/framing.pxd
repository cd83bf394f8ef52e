# The ZMTP frame header (RFC 23, "Framing"), parsed and written in place, without Python and without allocation.

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef enum:
    FLAG_MORE = 1            # more frames of this message follow
    FLAG_LONG = 2            # the size has eight bytes instead of one
    FLAG_COMMAND = 4         # a command, not a part of a message
    SHORT_HEADER_BYTES = 2   # bytes
    LONG_HEADER_BYTES = 9    # bytes
    PING_BYTES = 7           # bytes of a PING's body without its context (RFC 37, Connection Heartbeating)
    PONG_BYTES = 5           # likewise of a PONG's
    PING_CONTEXT_BYTES = 16  # largest context
    MAX_SHORT_BYTES = 255    # largest body with a short header

cdef struct Header:
    uint64_t size        # bytes of body that follow the header
    int length           # bytes of the header itself: 2 or 9
    int flags            # FLAG_*


cdef inline uint64_t long_size(const unsigned char *p) noexcept nogil:
    """Returns the size in a long header."""
    return ((<uint64_t>p[1] << 56) | (<uint64_t>p[2] << 48) | (<uint64_t>p[3] << 40) | (<uint64_t>p[4] << 32)
            | (<uint64_t>p[5] << 24) | (<uint64_t>p[6] << 16) | (<uint64_t>p[7] << 8) | <uint64_t>p[8])


cdef inline int parse_header(const unsigned char *p, Py_ssize_t available, Header *out) noexcept nogil:
    """Parses a header; returns 1: *out* is filled; 0: more bytes are needed; -1: not a ZMTP frame."""
    cdef int flags
    if available < 1:
        return 0
    flags = p[0]
    # RFC 23: bits 7-3 are reserved and SHALL be zero; a command is a single frame (MORE is zero).
    if flags > 6 or flags == (FLAG_COMMAND | FLAG_MORE):
        return -1
    if not flags & FLAG_LONG:
        if available < SHORT_HEADER_BYTES:
            return 0
        out.size = p[1]
        out.length = SHORT_HEADER_BYTES
        out.flags = flags
        return 1
    # A size has 63 bits in practice: a larger one fits no type, and its arithmetic would overflow.
    if available >= 2 and p[1] & 0x80:
        return -1
    if available < LONG_HEADER_BYTES:
        return 0
    out.size = long_size(p)
    out.length = LONG_HEADER_BYTES
    out.flags = flags
    return 1


cdef inline int write_header(unsigned char *p, int flags, Py_ssize_t size) noexcept nogil:
    """Writes the shortest header for a body of *size* bytes; returns the header's length in bytes."""
    if size < 256:
        p[0] = <unsigned char>flags
        p[1] = <unsigned char>size
        return SHORT_HEADER_BYTES
    write_long_header(p, flags, size)
    return LONG_HEADER_BYTES


cdef inline void write_long_header(unsigned char *p, int flags, Py_ssize_t size) noexcept nogil:
    """Writes the header with a size of eight bytes, for a body of any size."""
    p[0] = <unsigned char>(flags | FLAG_LONG)
    p[1] = <unsigned char>(<uint64_t>size >> 56)
    p[2] = <unsigned char>(<uint64_t>size >> 48)
    p[3] = <unsigned char>(<uint64_t>size >> 40)
    p[4] = <unsigned char>(<uint64_t>size >> 32)
    p[5] = <unsigned char>(<uint64_t>size >> 24)
    p[6] = <unsigned char>(<uint64_t>size >> 16)
    p[7] = <unsigned char>(<uint64_t>size >> 8)
    p[8] = <unsigned char>size


# The form of a subscription as a frame: a command for peers with ZMTP 3.1 and newer, a message for older ones (RFC 37,
# The Publish-Subscribe Pattern; RFC 23, likewise). For a RADIO always a command (RFC 37, The Radio-Dish Pattern).

cdef enum Asking:
    AS_MESSAGE = 0    # a byte 1 or 0, and the prefix
    AS_SUBSCRIBE = 1  # SUBSCRIBE and CANCEL
    AS_JOIN = 2       # JOIN and LEAVE


cdef inline const char *asking_name(Asking form, bint subscribe) noexcept nogil:
    """Returns the bytes before the prefix, including the length of a command's name."""
    if form == AS_SUBSCRIBE:
        return b"\x09SUBSCRIBE" if subscribe else b"\6CANCEL"
    if form == AS_JOIN:
        return b"\4JOIN" if subscribe else b"\5LEAVE"
    return b"\1" if subscribe else b"\0"


cdef inline int asking_length(Asking form, bint subscribe) noexcept nogil:
    """Returns the number of bytes before the prefix."""
    return 1 if form == AS_MESSAGE else 1 + asking_name(form, subscribe)[0]


cdef inline Py_ssize_t asking_size(Py_ssize_t size, Asking form, bint subscribe) noexcept nogil:
    """Returns the size of the frame that subscribes to a prefix of *size* bytes, or cancels the subscription."""
    size += asking_length(form, subscribe)
    return size + (SHORT_HEADER_BYTES if size <= MAX_SHORT_BYTES else LONG_HEADER_BYTES)


cdef inline Py_ssize_t write_asking(
    unsigned char *p, const char *prefix, Py_ssize_t size, Asking form, bint subscribe
) noexcept nogil:
    """Writes that frame; returns its size."""
    cdef const char *name = asking_name(form, subscribe)
    cdef int length = asking_length(form, subscribe)
    cdef int header = write_header(p, FLAG_COMMAND if form != AS_MESSAGE else 0, length + size)
    memcpy(p + header, name, length)
    memcpy(p + header + length, prefix, size)
    return header + length + size
