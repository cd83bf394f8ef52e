# The memory of what a connection receives.

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from omq._core.wire.codec cimport Codec
from omq._core.wire.pool cimport Pool

cdef enum:
    FILL_EOF = 0             # the peer has closed its side
    FILL_ERROR = -1          # FrameReader.error holds the errno
    FILL_EMPTY = -2          # nothing to read now
    FILL_NO_MEMORY = -3

cdef struct Node:
    Node *next               # the node received after this one; owned through the chain
    char *data               # bytes behind this struct in the same block; NULL for a large frame
    Py_ssize_t pos           # offset in data of the first unread byte
    Py_ssize_t end           # offset in data behind the last byte received
    PyObject *body           # the large frame; strong reference, NULL for a slab and for one that stands in a target
    int flags                # FLAG_* of the large frame


cdef class SlabList:
    cdef Pool _pool
    cdef Codec codec                 # decodes what arrives; None: plain frames arrive
    cdef Py_ssize_t _limit           # bytes that a slab is filled with at most: where they may grow there is room behind
    cdef Node *_head                 # first unread; owned
    cdef Node *_tail                 # where bytes arrive
    cdef Py_ssize_t _scan            # offset in the tail slab of the first byte not yet looked at
    cdef Py_ssize_t _dead            # bytes of commands before _scan in the tail slab, handled already
    cdef Py_ssize_t _need            # bytes of the frame at _scan, header included, as far as known; 0 unknown
    cdef char *_spare                # a block that catches what follows a large frame; owned
    cdef Node *_large                # the large frame under construction, a node of the chain; NULL: none
    cdef char *_memory               # where it is put together: in its body, or in the target
    cdef Py_ssize_t _have            # bytes of it that arrived
    cdef Py_ssize_t _room            # bytes it has memory for
    cdef uint64_t _size              # bytes it will have
    cdef Py_ssize_t _parts           # parts seen of the message under way
    cdef Py_ssize_t complete  # whole messages that can be taken
    cdef Py_ssize_t asked            # bytes that the last fill had room for
    cdef int error                   # errno of the last FILL_ERROR
    cdef int slabs(self) noexcept nogil
    cdef Py_ssize_t fill(self, int fd) noexcept nogil
    cdef long long boundary(self) noexcept nogil
    cdef int feed(self, const char *data, Py_ssize_t size) except -1
    cdef void clear(self)
    cdef bint _make_room(self) noexcept nogil
    cdef void _compact(self) noexcept nogil
    cdef void _after_message(self) noexcept nogil
    cdef void _drop_head(self) noexcept nogil
    cdef void _settle(self) noexcept nogil
