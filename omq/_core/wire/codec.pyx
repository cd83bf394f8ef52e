"""The seam between a connection and what its traffic looks like on the wire.

A connection has one codec for its data phase, or None: then its frames are those of ZMTP (RFC 23, Framing), written and
read in place by inlined code. All that stands behind this seam handles plain ZMTP frames: what is sent becomes a codec's frame
on its way into the batch, and what arrives becomes a plain frame in the place where it stands.
"""

cimport cython
from libc.string cimport memcpy

from omq._core.wire.framing cimport FLAG_COMMAND, LONG_HEADER, write_header

from omq.errors import RemoteProtocolError


@cython.auto_pickle(False)
cdef class Codec:
    """How one connection's frames look on the wire, both ways. This one does what is done without one; others are subclasses.

    One thread at a time encodes, and one decodes: other threads may do the one while one does the other. What `encode`
    and `head` take as flags, and what `decode`, `finish` and `glance` tell, are the FLAG_* of plain frames. A number below
    0 that `measure`, `decode` or `finish` gives is for `explain`, and ends the connection.
    """

    def __cinit__(self, *_, **__):
        self.overhead = LONG_HEADER
        self.borrows = self.watchable = True

    def __reduce__(self):
        raise TypeError("a codec is not pickled or copied")

    # ------------------------------------------------------------------ out

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        """Writes a whole frame; *into* has `size + overhead` octets, all of which may be written to. Of none it may be NULL.

        Returns:
            Octets of the frame, which begins at *into*. 0: nothing is sent for this; -1: nothing can be sent any more.
        """
        cdef int length = write_header(into, flags, size)
        memcpy(into + length, payload, size)
        return length + size

    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil:
        """Where it `borrows`: writes what goes in front of a payload that follows as it is; gives its size as `encode`."""
        return write_header(into, flags, size)

    cdef object exhausted(self):
        """The error that says why nothing can be sent any more; None as long as something can."""
        return None

    # ------------------------------------------------------------------ in

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """How long the frame is that begins at *p*: changes nothing.

        Args:
            available: Octets that have arrived; it may be none.
            frame: Is filled, but for what comes from `decode`.

        Returns:
            1, or 0 as long as the header is not whole, or an error.
        """
        return measure_plain(p, available, frame)

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """Makes a plain frame of one that is whole, where it stands.

        What stands at *p* afterwards is `frame.whole` octets of plain frames: `frame.spare` octets of commands, which readers
        skip, and the frame at the end. Of a command all is spare. Its payload are the last `frame.payload` octets.

        Args:
            available: Octets that have arrived. Behind them there is room for `growth` more.
            frame: As `measure` has filled it.

        Returns:
            The frame's flags, or an error.
        """
        frame.whole = frame.length + <Py_ssize_t>frame.size
        frame.spare = frame.whole if frame.flags & FLAG_COMMAND else 0
        frame.grown = 0
        return frame.flags

    cdef bytes finish(self, bytes body, int *found):
        """The payload of a large frame that is not `as_is`; no other frame has been measured since.

        Args:
            body: What stood behind its header. Nobody else has it yet: it may be changed, and given back.
            found: Becomes the frame's flags, or an error.
        """
        found[0] = 0
        return body

    cdef int glance(self, const unsigned char *p, const WireFrame *frame, unsigned char *into) noexcept nogil:
        """As `decode`, for a frame that will come, and is left as it is, and so is the codec; where it is `watchable`.

        Args:
            frame: As `measure` has filled it; its payload has GLANCE_LIMIT octets at most.
            into: Gets the payload.

        Returns:
            The flags; -1 if that cannot be told.
        """
        memcpy(into, p + frame.length, <size_t>frame.payload)
        return frame.flags

    cdef object answer(self):
        """What is to be said after a frame with FLAG_OWN; None: nothing.

        Returns:
            Plain frames, which will come through `encode`: a command whose first octet is 0 is no command of ZMTP.
        """
        return None

    cdef object explain(self, int found):
        """The exception that says what is wrong, for a number below 0; None: the peer has said that it ends here."""
        return RemoteProtocolError("bytes that are no ZMTP frame (RFC 23, Framing)")
