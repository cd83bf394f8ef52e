# Send queues whose messages name their receiver.

cimport cython

from omq._core.queues.recv_queue cimport ReplyRecvQueue
from omq._core.queues.peer cimport SendQueue, Peer


cdef class RoutedSendQueue(SendQueue):
    cdef readonly dict table         # identity, or number where a peer has one, to Peer
    cdef bint mandatory_             # ZMQ_ROUTER_MANDATORY
    cdef dict _roomy                 # keys of the peers that were not found full since they last reported room
    cdef Peer _find(self, object route)
    cdef bint _full(self, Peer peer) except -1


@cython.final
cdef class StreamSendQueue(RoutedSendQueue):
    pass


cdef class ReplySendQueue(SendQueue):
    cdef ReplyRecvQueue _recv_queue
    cdef set _peers                  # all attached
