"""A codec in Python, for experiments and tests. The package does not use it.

It is a compiled module because a Python class cannot override methods that only C calls, and so that every build
(sanitizers, races, coverage) has it. A program that does not import it does not load it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from omq._core.wire.codec cimport FLAGS_UNKNOWN, MAX_OVERHEAD_BYTES, Codec, WireFrame, leave_plain

cdef enum:
    RAISED = -1000  # a method has raised an exception: `explain` returns it


@cython.auto_pickle(False)
cdef class PyCodec(Codec):
    """A codec in Python, for experiments and tests.

    Flags are those of a plain frame: 1 for more, 4 for a command, plus 8 for a message between codecs.
    A number below 0 stands for an error, and so does an exception that a method raises.

    Args:
        overhead: Bytes of a frame in addition to its payload, at most.
        growth: Bytes by which a slab's frames may grow when they are decoded, all together.
        borrows: A large payload leaves unchanged, after the bytes of `encode_head`.
    """

    cdef object _raised              # the exception of a method whose caller cannot raise it, or None

    def __init__(self, *, Py_ssize_t overhead=0, Py_ssize_t growth=0, bint borrows=False) -> None:
        if not 0 <= overhead <= MAX_OVERHEAD_BYTES:
            raise ValueError(overhead)
        self.overhead = overhead
        self.growth = growth
        self.borrows = borrows
        self.watchable = False  # Python needs the GIL

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        with gil:
            return self._encode(into, flags, payload, size)

    cdef Py_ssize_t _encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept:
        cdef bytes frame
        try:
            frame = self.encode_frame(flags, PyBytes_FromStringAndSize(payload, size))
            if PyBytes_GET_SIZE(frame) > size + self.overhead:
                raise ValueError(PyBytes_GET_SIZE(frame))
        except BaseException as error:
            self._raised = error
            return -1
        if frame:  # otherwise there may be no memory for it, either
            memcpy(into, PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame))
        return PyBytes_GET_SIZE(frame)

    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil:
        with gil:
            return self._head(into, flags, size)

    cdef Py_ssize_t _head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept:
        cdef bytes head
        try:
            head = self.encode_head(flags, size)
            if PyBytes_GET_SIZE(head) > self.overhead:
                raise ValueError(PyBytes_GET_SIZE(head))
        except BaseException as error:
            self._raised = error
            return -1
        if head:
            memcpy(into, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        return PyBytes_GET_SIZE(head)

    cdef object exhausted(self):
        return self._raised

    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags):
        found = self.reopen_frame(PyBytes_FromStringAndSize(<const char *>p, frame.length + <Py_ssize_t>frame.size))
        if found is None:
            return None
        flags[0], payload = found
        return payload

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        with gil:
            return self._measure(p, available, frame)

    cdef int _measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept:
        try:
            found = self.measure_frame(PyBytes_FromStringAndSize(<const char *>p, available))
            if found is None:
                return 0
            if isinstance(found, int):
                return found
            frame.length, frame.size, frame.payload, flags, frame.as_is = found
            frame.flags = FLAGS_UNKNOWN if flags is None else flags
        except BaseException as error:
            self._raised = error
            return RAISED
        return 1

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        with gil:
            return self._decode(p, available, frame)

    cdef int _decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept:
        cdef bytes payload
        cdef int flags
        try:
            found = self.decode_frame(PyBytes_FromStringAndSize(<const char *>p, frame.length + <Py_ssize_t>frame.size))
            if isinstance(found, int):
                return found
            flags, payload = found
        except BaseException as error:
            self._raised = error
            return RAISED
        leave_plain(p, available, <const unsigned char *>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), flags, frame)
        return flags

    cdef bytes finish(self, bytes body, int *found):
        given = self.finish_body(body)
        if isinstance(given, int):
            found[0] = given
            return body
        found[0], payload = given
        return payload

    cdef object answer(self):
        return self.answer_own()

    cdef object explain(self, int found):
        return self._raised if found == RAISED else self.explain_error(found)

    def encode_frame(self, int flags, bytes payload) -> bytes:
        """Returns the frame; empty if it must not be sent."""
        raise NotImplementedError

    def encode_head(self, int flags, Py_ssize_t size) -> bytes:
        """Returns the bytes in front of a large payload of *size* bytes."""
        raise NotImplementedError

    def reopen_frame(self, bytes frame) -> tuple[int, bytes] | None:
        """Returns the flags and the payload of an unsent frame of `encode_frame`; `None`: they cannot be recovered."""
        return None

    def measure_frame(self, bytes arrived) -> tuple[int, int, int, int | None, bool] | int | None:
        """Measures the frame that begins here.

        Returns:
            Bytes of its header, bytes after that, bytes of payload among them at most, its flags if they are known,
            and, if it is large, whether these bytes are the unchanged payload. `None`: its header is not whole.
        """
        raise NotImplementedError

    def decode_frame(self, bytes frame) -> tuple[int, bytes] | int:
        """Returns the flags and the payload of a whole frame."""
        raise NotImplementedError

    def finish_body(self, bytes body) -> tuple[int, bytes] | int:
        """Returns the flags and the payload of a large frame, from *body*, the bytes after the header."""
        raise NotImplementedError

    def answer_own(self) -> bytes | None:
        """Returns the answer to a frame with flag 8, as plain frames."""
        return None

    def explain_error(self, int found) -> Exception | None:
        """Returns the exception for an error; `None`: the peer has announced that it ends the connection."""
        raise NotImplementedError
