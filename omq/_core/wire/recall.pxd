# Recovers the messages of a batch that must not leave.

from omq._core.wire.codec cimport Codec
from omq._core.wire.segment cimport Segment


cdef bint recall(const Segment *segments, int count, const char *arena, Codec codec, list messages,
                 int *at, Py_ssize_t *end) except -1
