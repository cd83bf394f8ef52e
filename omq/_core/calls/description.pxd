# Descriptions of a peer and of a message's sender, for users.

from omq._core.queues.peer cimport RecvQueue

cdef object describe(list parts, RecvQueue recv_queue)
