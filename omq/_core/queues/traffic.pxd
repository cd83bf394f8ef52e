# The counters of a socket, of all its peers.

from omq._core.queues.peer cimport Peer


cdef class Traffic:
    cdef set _peers                  # those whose counters still grow
    cdef long long _sent             # messages of former peers
    cdef long long _received
    cdef long long _sent_bytes
    cdef long long _received_bytes
    cdef long long _dropped
    cdef long long _reported         # the highest number of sent messages that was returned
