# What a connection has accepted and the kernel has not: copies in an arena, large payloads by reference.

cimport cython
from cpython.object cimport PyObject

from omq._core.buffer cimport Pool

cdef enum:
    INLINE_LIMIT = 4096      # bytes: a payload up to this is copied, a larger one is borrowed
    BATCH_BYTES = 65536      # bytes at which a batch leaves
    BATCH_MESSAGES = 256     # messages at which a batch leaves

cdef enum:
    FLUSH_DONE = 0           # the kernel has everything
    FLUSH_BLOCKED = 1        # it has taken what it could
    FLUSH_ERROR = -1         # Batch.error holds the errno

cdef struct Part:            # one part of a message on its way in; valid during the call only
    const char *data
    Py_ssize_t size          # bytes
    PyObject *owner          # the bytes object whose content data is; NULL: memory that is the caller's

cdef struct Segment:
    char *base               # memory of owner, or the caller's; NULL: the arena
    Py_ssize_t offset        # in the arena
    Py_ssize_t size          # bytes left
    PyObject *owner          # strong reference, or NULL
    int messages             # messages that end in this segment


@cython.final
cdef class Batch:
    cdef Pool _pool
    cdef char *_arena        # owned; a pooled block while _capacity is BLOCK_SIZE
    cdef Py_ssize_t _capacity  # bytes
    cdef Py_ssize_t _used    # bytes
    cdef Segment *_segments  # owned
    cdef int _room           # segments there is memory for
    cdef int _first          # the first that is not sent
    cdef int _count          # one behind the last
    cdef PyObject **_done    # references to drop, as many as _room; owned
    cdef int _ndone
    cdef bint _foreign       # a segment stands in the caller's memory
    cdef Py_ssize_t bytes    # not sent
    cdef Py_ssize_t messages  # not wholly sent: those of a segment count until its last byte is out
    cdef int grain           # messages a segment has at most: how exact `messages` is
    cdef int error           # errno of the last FLUSH_ERROR
    cdef int put(self, const Part *part, int flags) except -1
    cdef int copy(self, const char *data, Py_ssize_t size) except -1
    cdef int end_message(self) except -1
    cdef int flush(self, int fd) noexcept nogil
    cdef int adopt(self) except -1
    cdef void reap(self)
    cdef void clear(self)
    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef void _release(self)
    cdef Segment *_append(self) except NULL
    cdef Segment *_open(self) except NULL
    cdef void _sent(self, Py_ssize_t size) noexcept nogil
