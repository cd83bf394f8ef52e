# Groups of RADIO and DISH: subscriptions that are matched exactly (RFC 48).

from omq._core.queues.matcher cimport Matcher
from omq._core.queues.peer cimport Peer
from omq._core.queues.recv_queue cimport ShapedRecvQueue
from omq._core.queues.subscriptions cimport OwnSubscriptions, PublisherSendQueue


cdef class UnaskedPeer(Peer):
    cdef Py_ssize_t limit            # the largest sum of the bytes of a group and a body


cdef class RadioSendQueue(PublisherSendQueue):
    cdef list _unasked               # the peers that get every group
    cdef Py_ssize_t _limit           # the smallest of their limits; 0: no such peer
    cdef int _count_unasked(self) except -1
    cdef bint _named(self, Peer peer, const char *group, Py_ssize_t size, bint join) except -1


cdef class OwnGroups(OwnSubscriptions):
    cdef int _change_once(self, bytes group, bint join) except -1


cdef class GroupRecvQueue(ShapedRecvQueue):
    cdef readonly Matcher matcher    # the groups that were joined; the slot is always 0
    cdef bytes _group                # of the message that was taken last
    cdef bytes _next_group           # of the message in `_stash`
    cdef bint _wanted(self, bytes group) noexcept
