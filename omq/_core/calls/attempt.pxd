# One attempt of a call, without waiting: the same in both twins.

cimport cython

from cpython.buffer cimport Py_buffer

from omq._core.calls.description cimport describe
from omq._core.queues.peer cimport NO_MESSAGE, RecvQueue, SendQueue

cdef enum Take:              # what a receiving call takes
    TAKE_ONE
    TAKE_PARTS
    TAKE_MANY
    TAKE_INTO
    TAKE_MESSAGE

cdef enum:                   # the argument and result of `poll`: omq.types.POLL_IN and POLL_OUT
    READY_IN = 1
    READY_OUT = 4
    READY_BOTH = 5

cdef object count_of(str name, object value, int least)
cdef int events_of(object events) except -1
cdef int ready_of(int wanted, RecvQueue recv_queue, SendQueue send_queue) except -1
cdef int refuse_large(Py_ssize_t room) except -1


cdef inline object take(RecvQueue recv_queue, Take how, object limit, Py_buffer *into):
    """Takes messages in the form of the call, or None. *limit* is for TAKE_MANY, *into* for TAKE_INTO."""
    cdef Py_ssize_t got
    cdef list parts
    if how == TAKE_ONE:
        return recv_queue.take()
    if how == TAKE_PARTS:
        return recv_queue.take_message()
    if how == TAKE_MANY:
        return recv_queue.take_many(limit)
    if how == TAKE_INTO:
        got = recv_queue.take_into(<char *>into.buf, into.len)
        if got == NO_MESSAGE:
            return None
        if got < 0:
            refuse_large(into.len)
        return got
    parts = recv_queue.take_message()
    return None if parts is None else describe(parts, recv_queue)
