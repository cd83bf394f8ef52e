# A run of a batch's bytes: a stretch of the arena, or one large payload.

from cpython.object cimport PyObject


cdef struct Segment:
    char *base               # memory of owner, or the caller's; NULL: the arena
    Py_ssize_t offset        # in the arena
    Py_ssize_t size          # bytes left
    PyObject *owner          # strong reference, or NULL
    int messages             # messages that end in this segment
    Py_ssize_t sent          # bytes before those that have left
    bint inside              # it begins inside a message
    bint payload             # it is the payload of the frame whose header is the end of the segment before
