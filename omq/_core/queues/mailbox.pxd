# What waits for the user of an XPUB.

from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport Peer


cdef class Box:
    cdef Peer peer                   # who says it
    cdef long long place             # of the last thing that it has said
    cdef Py_ssize_t waiting          # things of its that wait to be taken
    cdef object order                # deque of the keys of what it has in `Mailbox.late`, oldest first; some have left it
    cdef Py_ssize_t lagging          # of them that have not


cdef class Mailbox(ObjectPeer):
    cdef readonly dict late          # what found no room: a change, and its box, by what it is about
    cdef Peer sender                 # whom the last message that was taken came from
    cdef Py_ssize_t hwm              # messages of one peer that may wait; 0 no bound
    cdef list _heap                  # of tuples: place, number, message, box, what it is about or None
    cdef tuple _first                # what is taken next, once somebody has looked at it: nothing comes before it then
    cdef long long _place            # of the last one that was taken
    cdef long long _number           # of the last one that came: what has the same place leaves in that order
    cdef dict _said                  # the place of the last word that waits, by what it is about
    cdef bint _each                  # a word concerns the one peer that it came from
    cdef bint _has_room(self, Box box) noexcept
    cdef Box _box_of(self, Peer peer)
    cdef int set_hwm(self, Py_ssize_t hwm) except -1
    cdef int deposit(self, object message, Peer peer) except -1
    cdef int tell(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe, bint change) except -1
    cdef int _put(self, Box box, object message, object key) except -1
    cdef int _keep(self, Box box, bytes word, bytes key) except -1
    cdef bint _lets_in(self, Box box) except -1
    cdef bint _is_of(self, object key, Box box) except -1
    cdef int _catch_up(self, Box box) except -1
