# Messages as columns: bodies one after the other, and the offset of each end.

from libc.stdint cimport int32_t

from omq._core.queues.peer cimport RecvQueue


cdef Py_ssize_t take_columns(RecvQueue recv_queue, object data, object ends, object start) except -1
