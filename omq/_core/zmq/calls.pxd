# The calls of the pyzmq face that run for every message.

cimport cython

from omq._core.calls.sync cimport SyncCore
from omq._core.zmq.frame cimport FrameData


cdef enum:
    DONTWAIT = 1
    SNDMORE = 2
    ROUTER_MANDATORY = 33
    EFSM = 156384763


cdef class SocketCalls


cdef class Handle:
    cdef object __weakref__
    cdef SyncCore _core
    cdef list _rest                  # parts of the message that is being received, the next one last; None: no message
    cdef public object begun         # parts, a list of the message that is being sent; None: no message
    cdef public bint closed
    cdef readonly object context     # the state of its context
    cdef public object state         # its options
    cdef bint _plain                 # `send` of the omq socket needs no keyword
    cdef bint _always                # libzmq reports POLLOUT for the type at all times: messages without a peer are dropped
    cdef bint _single                # and a message of one part is complete
    cdef bint _several               # messages may have several parts
    cdef bint _paired                # requests and replies alternate
    cdef bint _addressed             # a message begins with its receiver
    cdef object _sender              # the session that `_rest` came from
    cdef object _group
    cdef object _routing_id
    cdef bint _keeps                 # the sender of the message that is being received is noted
    cdef object take(self, int flags)
    cdef object take_now(self)
    cdef int keep(self, list parts) except -1
    cdef bint put_now(self, object data) except -1
    cdef int fail(self, object error) except -1
    cdef object put(self, object data, int flags)
    cdef bint _has_room(self) except -1
    cdef object send_whole(self, SocketCalls socket, object msg_parts, int flags, bint copy, bint track)
    cdef FrameData _frame_of(self, SocketCalls socket, object data, bint copy, bint track)
    cdef object _payload_of(self, FrameData frame, object data)
    cdef FrameData _received(self, object part, bint more, bint track)

    @cython.final
    cdef inline bint _is_between_messages(self) noexcept:
        """Returns whether the socket is open, and no message is being sent or received part by part."""
        return self.begun is None and self._rest is None and not self.closed


cdef class SocketCalls:
    cdef public Handle _handle
    cdef Py_ssize_t threshold(self) except -1
