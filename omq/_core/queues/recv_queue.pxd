# Receive queues that inspect messages: the socket types' handling of received messages.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from omq._core.queues.matcher cimport Matcher
from omq._core.queues.peer cimport RecvQueue, Peer
from omq._core.wire.send_buffer cimport Part


cdef inline void point(Part *part, bytes body) noexcept:
    part.data = PyBytes_AS_STRING(body)
    part.size = PyBytes_GET_SIZE(body)
    part.owner = <PyObject *>body


cdef class FilteredRecvQueue(RecvQueue):
    cdef readonly Matcher matcher    # the subscriptions; the slot is always 0; None: every message is wanted
    cdef bint _invert                # ZMQ_INVERT_MATCHING


cdef class ConflatedRecvQueue(FilteredRecvQueue):
    pass


cdef class ShapedRecvQueue(RecvQueue):
    cdef bint _shaping               # a message is being taken from its peer
    cdef bint _asked                 # a caller has asked for the next one meanwhile
    cdef list _stash                 # a message that is shaped and not taken yet
    cdef list _next(self)
    cdef list _shape(self, Peer peer, list parts)
    cdef int _deliver(self) except -1


cdef class RouterRecvQueue(ShapedRecvQueue):
    pass


cdef class ReplyRecvQueue(ShapedRecvQueue):
    cdef Peer _asker                 # the peer that sent the message in _stash
    cdef list _route                 # its envelope
    cdef Peer client                 # the peer that waits for a reply, or None
    cdef list envelope               # the parts in front of the reply


cdef class RequestRecvQueue(ShapedRecvQueue):
    cdef Peer asked                  # the peer that has the request; None while it waits in the queue
    cdef readonly bint awaiting               # a request is out and its reply has not been taken
    cdef bint gone                   # the peer that was asked is gone
    cdef bytes request_id            # req_correlate: the first part that the reply must have; None: not in use
    cdef int _discard(self, Peer peer) except -1
    cdef bint hopeless(self) except -1
    cdef int clear(self) except -1
