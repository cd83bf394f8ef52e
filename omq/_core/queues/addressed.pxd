# Outlets whose messages say whom they are for.

from omq._core.queues.inlet cimport ReplyInlet
from omq._core.queues.peer cimport Outlet, Peer


cdef class Addressed(Outlet):
    cdef readonly dict table         # identity to Peer
    cdef bint mandatory_             # ZMQ_ROUTER_MANDATORY
    cdef dict _roomy                 # of those peers: which have not been found full since they told of room, to None
    cdef bint _full(self, Peer peer) except -1


cdef class ReplyOutlet(Outlet):
    cdef ReplyInlet _inlet
    cdef set _peers                  # all attached
