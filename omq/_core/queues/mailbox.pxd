# Messages that wait for the user of an XPUB.

from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport Peer


cdef class Box:
    cdef Peer peer                   # the peer that sent the messages
    cdef long long place             # place of its last message
    cdef Py_ssize_t waiting          # messages of the peer that wait to be taken
    cdef object order                # deque of its keys in `Mailbox.late`, oldest first, also some that have left
    cdef Py_ssize_t lagging          # number of keys that are still there


cdef class Mailbox(ObjectPeer):
    cdef readonly dict late          # changes that found no room: the change, and its box, by peer and prefix
    cdef Peer sender                 # the peer that the last taken message came from
    cdef Py_ssize_t hwm              # messages of one peer that may wait; 0 no bound
    cdef list _heap                  # of tuples: place, number, message, box, key or None
    cdef tuple _first                # the next message to take, once viewed: nothing comes before it then
    cdef long long _place            # place of the last message that was taken
    cdef long long _number           # number of the last message that came: equal places leave in that order
    cdef dict _said                  # place of the last waiting message, by key
    cdef public bint each            # a subscription concerns only the peer that it came from
    cdef bint _has_room(self, Box box) noexcept
    cdef Box _box_of(self, Peer peer)
    cdef int set_hwm(self, Py_ssize_t hwm) except -1
    cdef int deposit(self, object message, Peer peer) except -1
    cdef int note_subscription(
        self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe, bint change) except -1
    cdef int _put(self, Box box, object message, object key) except -1
    cdef int _keep(self, Box box, bytes word, bytes key) except -1
    cdef bint _lets_in(self, Box box) except -1
    cdef bint _is_of(self, object key, Box box) except -1
    cdef int _catch_up(self, Box box) except -1
