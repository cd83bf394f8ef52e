"""The interface between a connection and the form of its traffic on the wire.

A connection has one codec for its data phase, or None: then its frames are those of ZMTP (RFC 23, Framing), written and
read in place by inlined code. The code on this side of the interface handles plain ZMTP frames only. A frame becomes a
codec's frame on its way into the batch, and an arriving frame is replaced by a plain one in place.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

from omq._core.wire.framing cimport FLAG_COMMAND, LONG_HEADER_BYTES, write_header

from omq.errors import RemoteProtocolError


@cython.auto_pickle(False)
cdef class Codec:
    """The form of one connection's frames on the wire, both ways. This class works like no codec.

    One thread at a time encodes, and one decodes; one thread may encode while another decodes. The flags that
    `encode` and `head` take, and that `decode`, `finish` and `glance` return, are the FLAG_* of plain frames. A number
    below 0 from `measure`, `decode` or `finish` is for `explain`, and ends the connection.

    Attributes:
        overhead: Bytes around a payload that encoding may write to.
        growth: Bytes by which a slab's frames may grow when they are decoded, all together.
        borrows: A large payload leaves unchanged.
        lead: Bytes left free in front of those of each read, where decoding writes a frame's header.
        portion: Bytes of one read at most; 0 for as many as there is room for.
        watchable: A thread that never takes the GIL may parse arrived frames, and answer.
    """

    def __cinit__(self, *_, **__):
        self.overhead = LONG_HEADER_BYTES
        self.borrows = self.watchable = True

    def __reduce__(self):
        raise TypeError("a codec is not pickled or copied")

    # ------------------------------------------------------------------ out

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        """Writes a whole frame. All `size + overhead` bytes of *into* may be written. NULL is allowed for no payload.

        Returns:
            Bytes of the frame, which begins at *into*. 0: no frame is sent; -1: nothing can be sent any more.
        """
        cdef int length = write_header(into, flags, size)
        memcpy(into + length, payload, size)
        return length + size

    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil:
        """Writes the bytes in front of an unchanged payload, if it `borrows`; returns like `encode`."""
        return write_header(into, flags, size)

    cdef object exhausted(self):
        """Returns the reason why nothing can be sent any more, or None."""
        return None

    cdef bytes closing_frame(self, bint failed):
        """Returns the last frame before our side of the stream ends, in plain form for `encode`, or None.

        Args:
            failed: The peer has violated the protocol.
        """
        return None

    cdef int measure_own(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """Measures a frame that `encode` or `head` has made, as `measure` does an arriving one."""
        return self.measure(p, available, frame)

    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags):
        """Returns the payload of an unsent frame of our own, which is whole at *p*; None: it cannot be recovered.

        Args:
            frame: The result of `measure_own`.
            flags: Set to the frame's flags.
        """
        flags[0] = frame.flags
        return PyBytes_FromStringAndSize(<const char *>p + frame.length, <Py_ssize_t>frame.payload)

    # ------------------------------------------------------------------ in

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """Measures the frame that begins at *p*; changes nothing.

        Args:
            available: Bytes that have arrived, possibly 0.
            frame: Is filled, except for the fields that `decode` sets.

        Returns:
            1, or 0 as long as the header is not whole, or an error.
        """
        return measure_plain(p, available, frame)

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """Replaces a whole frame by a plain one, in place.

        Afterwards *p* has `frame.whole` bytes of plain frames: `frame.spare` bytes of commands, which readers
        skip, and the frame at the end. A command is all spare. Its payload is the last `frame.payload` bytes.

        Args:
            available: Bytes that have arrived. After them there is room for `growth` more.
            frame: The result of `measure`.

        Returns:
            The frame's flags, or an error.
        """
        frame.whole = frame.length + <Py_ssize_t>frame.size
        frame.spare = frame.whole if frame.flags & FLAG_COMMAND else 0
        frame.grown = 0
        return frame.flags

    cdef void begin_large(self, const unsigned char *p, Py_ssize_t length) noexcept nogil:
        """Saves the parts of a large frame's header that `finish` needs; it is at *p* and has *length* bytes."""

    cdef bytes finish(self, bytes body, int *found):
        """Returns the payload of the large frame that was begun last, and is not `as_is`.

        Args:
            body: The bytes after its header. The caller has the only reference: it may be changed, and returned.
            found: Set to the frame's flags, or an error.
        """
        found[0] = 0
        return body

    cdef int glance(self, const unsigned char *p, const WireFrame *frame, unsigned char *into) noexcept nogil:
        """Decodes like `decode` if it is `watchable`, ahead of time: changes neither the frame nor the codec.

        Args:
            frame: The result of `measure`; its payload has MAX_GLANCE_BYTES bytes at most.
            into: Gets the payload.

        Returns:
            The flags; -1 if they are unknown.
        """
        memcpy(into, p + frame.length, <size_t>frame.payload)
        return frame.flags

    cdef int flags_of(self, const unsigned char *p, const WireFrame *frame) noexcept nogil:
        """Returns the flags of a frame at *p*, of which `sight` bytes after the header have come, or FLAGS_UNKNOWN.

        They are not authenticated: an attacker who changes the frame on its way changes them.
        """
        return frame.flags

    cdef object answer(self):
        """Returns the answer to a frame with FLAG_OWN, or None.

        Returns:
            Plain frames, which will come through `encode`: a command whose first byte is 0 is not a command of ZMTP.
        """
        return None

    cdef object explain(self, int found):
        """Returns the exception for a number below 0; None: the peer has announced that it ends the connection."""
        return RemoteProtocolError("bytes that are not a valid ZMTP frame (RFC 23, Framing)")
