"""What waits for the user of an XPUB: what its peers want, as messages, and what they say (RFC 29).

An XPUB reads its peers whether its user does or not, for it has to know what they want. So what they say waits here, and
is bounded here: each peer has room of its own. It leaves in rounds, one message of each peer in turn, so that nobody waits
for all that another one has said before. What one peer says keeps its order, and so does what all of them say about one
prefix, for it has a meaning only in that order.

Each thing gets a place: one more than that of the last thing its peer has said, or, if that has been taken, than that of
the last thing taken (start-time fair queueing), and no smaller one than what was said about the same prefix before. The
smallest place leaves first.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.string cimport memcpy

from omq._core.lock cimport hush, unhush
from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport RecvQueue, Peer
from omq._core.queues.pipe cimport asking

from collections import deque
from heapq import heappop, heappush

cdef enum:
    STRIDE = 11              # 2 KiB count as one message more: a turn elsewhere is 256 messages, or 512 KiB
    MANY_STALE = 1024        # keys that `Box.order` may have beyond those that count


@cython.final
cdef class Box:
    """What one peer has said."""

    def __cinit__(self, Peer peer not None):
        self.peer = peer


@cython.final
cdef class Mailbox(ObjectPeer):
    def __init__(self, RecvQueue recv_queue not None, Py_ssize_t hwm, bint each):
        self.recv_queue = recv_queue
        self.hwm = hwm
        self.late = {}
        self._heap = []
        self._said = {}
        self._each = each

    @property
    def unread(self):
        return self.ready()

    # ------------------------------------------------------------------ what comes

    cdef Box _box_of(self, Peer peer):
        if peer.box is None:
            peer.box = Box(peer)
        return <Box>peer.box

    cdef bint _has_room(self, Box box) noexcept:
        return self.hwm == 0 or box.waiting < self.hwm

    cdef bint _lets_in(self, Box box) except -1:
        """Whether there is room. What the peer has said before comes first: where that waits for room there is none."""
        if box.lagging and self._has_room(box):
            self._catch_up(box)  # memory was short when it would have been time
        return box.lagging == 0 and self._has_room(box)

    cdef int set_hwm(self, Py_ssize_t hwm) except -1:
        self.hwm = hwm
        for box in {box for _, box in self.late.values()}:
            self._catch_up(box)
        return self.recv_queue.arrived(self) if self.ready() else 0

    cdef int deposit(self, object message, Peer peer) except -1:
        """Takes in what *peer* says (bytes, or a tuple of them), if there is room."""
        cdef Box box = self._box_of(peer)
        if not self._lets_in(box):
            return 0
        self._put(box, message, None)
        return self.recv_queue.arrived(self)

    cdef int tell(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe, bint change) except -1:
        """Takes in that *peer* wants a prefix, or no longer.

        *change*: it is new to all subscribers, or nobody holds it any more. That is not lost where there is no room.
        """
        cdef Box box = self._box_of(peer)
        cdef bytes word = asking(prefix, size, subscribe)
        cdef bytes key
        cdef void *who = <void *>peer
        if self._each:
            # Nobody else has its address while what it has said is kept, and so is it.
            key = PyBytes_FromStringAndSize(NULL, sizeof(who) + size)
            memcpy(PyBytes_AS_STRING(key), &who, sizeof(who))
            memcpy(PyBytes_AS_STRING(key) + sizeof(who), prefix, size)
        else:
            key = PyBytes_FromStringAndSize(prefix, size)
        if self._lets_in(box) and key not in self.late:
            self._put(box, word, key)
            return self.recv_queue.arrived(self)
        # A repetition of what the user has yet to hear says nothing more.
        return self._keep(box, word, key) if change else 0

    cdef int _put(self, Box box, object message, object key) except -1:
        cdef long long place = max(box.place, self._place) + 1
        cdef Py_ssize_t size = 0
        if type(message) is bytes:
            size = PyBytes_GET_SIZE(message)
        else:
            for part in <tuple>message:
                size += PyBytes_GET_SIZE(part)
        place += size >> STRIDE
        hush()  # a heap in the middle of a step is none
        try:
            if key is not None and not self._each:
                before = self._said.get(key)
                if before is not None and before >= place:
                    place = <long long>before + 1
                self._said[key] = place
            heappush(self._heap, (place, self._number + 1, message, box, key))
        finally:
            unhush()
        self._number += 1
        box.place = place
        box.waiting += 1
        return 0

    cdef int _keep(self, Box box, bytes word, bytes key) except -1:
        """Keeps a change for a user who lags.

        Changes of one thing alternate: one and its undoing are nothing, and no more is kept than the user's idea of the
        subscriptions differs from what they are.
        """
        kept = self.late.get(key)
        if kept is not None:
            (<Box>(<tuple>kept)[1]).lagging -= 1
            del self.late[key]
            return 0
        hush()
        try:
            if box.order is None:
                box.order = deque()
            elif len(box.order) > 2 * box.lagging + MANY_STALE:
                # Each once: what was kept, undone and kept again stands there several times.
                box.order = deque(dict.fromkeys([old for old in box.order if self._is_of(old, box)]))
            box.order.append(key)
            self.late[key] = word, box
        finally:
            unhush()
        box.lagging += 1
        return 0

    cdef bint _is_of(self, object key, Box box) except -1:
        """Whether that is kept for that peer."""
        kept = self.late.get(key)
        return kept is not None and (<tuple>kept)[1] is box

    cdef int _catch_up(self, Box box) except -1:
        """There is room again for what was kept. Nobody is told: that is its caller's business."""
        while box.lagging and self._has_room(box):
            key = box.order[0]
            if self._is_of(key, box):
                self._put(box, (<tuple>self.late[key])[0], key)
                del self.late[key]
                box.lagging -= 1
            box.order.popleft()
        return 0

    # ------------------------------------------------------------------ what the user takes

    cdef object _message(self):
        if self._first is None:
            hush()
            try:
                self._first = heappop(self._heap)
            finally:
                unhush()
            self._place = self._first[0]
        return self._first[2]

    cdef Py_ssize_t ready(self) noexcept:
        return PyList_GET_SIZE(self._heap) + (self._first is not None)

    cdef int _taken(self) except -1:
        cdef Box box = <Box>self._first[3]
        key = self._first[4]
        if key is not None and self._said.get(key) == self._first[0]:
            del self._said[key]
        self._first = None
        self._part = 0
        self.sender = box.peer
        self.session = box.peer.session
        box.waiting -= 1
        if box.lagging:
            try:
                self._catch_up(box)
            except MemoryError as error:
                # The user, who has just taken a message, is not to lose it for that.
                self.complain(error)
        return 0

    cdef int fail(self, object error) except -1:
        return 0  # who sent the last message has nothing to do with it
