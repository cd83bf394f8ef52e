# Messages as columns: bodies behind one another, and where each ends.

from libc.stdint cimport int32_t

from omq._core.queues.peer cimport RecvQueue


cdef Py_ssize_t take_columns(RecvQueue recv_queue, object data, object ends, object start) except -1
