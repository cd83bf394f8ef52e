# What a user is told of a peer, and of a message's sender.

from omq._core.queues.peer cimport RecvQueue

cdef object describe(list parts, RecvQueue recv_queue)
