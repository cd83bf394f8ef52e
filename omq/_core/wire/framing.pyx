# cython: language_level=3
"""Frames as Python values, for handshakes and tests. The hot path uses the inline functions of framing.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from omq.errors import RemoteProtocolError


def encode_frame(bytes body not None, bint more=False, bint command=False) -> bytes:
    """Encodes one frame with the shortest header that fits.

    Args:
        body: The frame's content.
        more: Another frame of the same message follows.
        command: The frame is a command, not a part of a message.

    Returns:
        Header and body, in the form of the wire (RFC 23, "Framing").
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef unsigned char header[9]
    cdef int length = write_header(header, (FLAG_MORE if more else 0) | (FLAG_COMMAND if command else 0), size)
    frame = PyBytes_FromStringAndSize(NULL, length + size)
    memcpy(PyBytes_AS_STRING(frame), header, length)
    memcpy(PyBytes_AS_STRING(frame) + length, PyBytes_AS_STRING(body), size)
    return frame


cdef class FrameDecoder:
    """Cuts a stream of bytes into frames; used during the handshake, and by tests.

    Args:
        max_size: Bytes of the largest body that is accepted; `None` for no limit.
    """

    cdef bytes _buffer          # bytes received and not yet given out as frames
    cdef object _limit          # bytes a body may have, or None

    def __init__(self, max_size: int | None = None) -> None:
        self._buffer = b""
        self._limit = max_size

    @property
    def unread(self) -> bytes:
        """Returns the bytes that were passed to `feed` and are not part of a returned frame."""
        return self._buffer

    def feed(self, data: bytes) -> None:
        """Appends bytes from the peer."""
        self._buffer += data

    def next_frame(self) -> tuple[int, bytes] | None:
        """Takes the next whole frame.

        Returns:
            The flags (bit 0: more, bit 2: command) and the body, or `None` if no whole frame has arrived.

        Raises:
            RemoteProtocolError: The bytes are not a valid frame, or the frame is larger than `max_size`.
        """
        cdef Header header
        cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(self._buffer)
        cdef Py_ssize_t available = PyBytes_GET_SIZE(self._buffer)
        cdef int state = parse_header(p, available, &header)
        if state == 0:
            return None
        if state < 0:
            raise RemoteProtocolError(f"not a ZMTP frame header: {self._buffer[:9].hex(' ')} (RFC 23, Framing)")
        if self._limit is not None and header.size > <uint64_t>self._limit:
            raise RemoteProtocolError(f"a frame announces {header.size} bytes, more than the {self._limit} allowed here")
        if header.size > <uint64_t>(available - header.length):
            return None
        body = PyBytes_FromStringAndSize(<const char *>p + header.length, <Py_ssize_t>header.size)
        self._buffer = self._buffer[header.length + <Py_ssize_t>header.size:]
        return header.flags & ~FLAG_LONG, body
