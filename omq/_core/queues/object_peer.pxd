# A peer whose messages are Python objects already.

from omq._core.queues.peer cimport Peer


cdef class ObjectPeer(Peer):
    cdef Py_ssize_t _part            # index of the next part in the first message
    cdef object _message(self)
    cdef int _taken(self) except -1
