# Messages of the socket itself to its user, about a peer.

from omq._core.queues.object_peer cimport ObjectPeer


cdef class Notice(ObjectPeer):
    cdef object _messages            # deque: each is bytes, or a tuple of them
