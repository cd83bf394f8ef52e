"""Messages that wait for the user of an XPUB: its peers' subscriptions and their other messages (RFC 29).

An XPUB reads its peers whether its user receives or not, because it must know the subscriptions. So the messages wait
here, and each peer has its own room for a bounded number. They leave in rounds, one message of each peer in turn, so no
peer waits for all earlier messages of another one. The messages of one peer keep their order, and so do all
subscriptions to one prefix, because their meaning depends on it.

Each message gets a place: one more than the place of its peer's last message or, if that has been taken, than the place
of the last message taken (start-time fair queueing), and never below an earlier message about the same prefix. The
smallest place leaves first.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.string cimport memcpy

from omq._core.lock cimport pause_gc, resume_gc
from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport RecvQueue, Peer
from omq._core.queues.pipe cimport asking

from collections import deque
from heapq import heappop, heappush

cdef enum:
    STRIDE = 11            # 2 KiB count as one message more: the turn of another queue is 256 messages, or 512 KiB
    MAX_STALE_KEYS = 1024  # stale keys that `Box.order` may have


@cython.final
cdef class Box:
    """The waiting messages of one peer."""

    def __cinit__(self, Peer peer not None):
        self.peer = peer


@cython.final
cdef class Mailbox(ObjectPeer):
    """Messages that wait for the user of an XPUB: its peers' subscriptions and their other messages.

    Args:
        recv_queue: The queue that they are taken from.
        hwm: Messages of one peer that may wait; 0 for no bound.

    Attributes:
        each: A subscription concerns only the peer that it came from.
        late: Changes that found no room, by peer and prefix, each with the box that it waits for.
    """
    # stub: late: dict[bytes, tuple[bytes, object]]

    def __init__(self, RecvQueue recv_queue not None, Py_ssize_t hwm) -> None:
        self.recv_queue = recv_queue
        self.hwm = hwm
        self.late = {}
        self._heap = []
        self._said = {}

    @property
    def unread(self) -> int:
        """Messages that wait to be taken."""
        return self.ready()

    # ------------------------------------------------------------------ messages in

    cdef Box _box_of(self, Peer peer):
        if peer.box is None:
            peer.box = Box(peer)
        return <Box>peer.box

    cdef bint _has_room(self, Box box) noexcept:
        return self.hwm == 0 or box.waiting < self.hwm

    cdef bint _lets_in(self, Box box) except -1:
        """Returns whether there is room. Not while an earlier message of the peer waits for room: that comes first."""
        if box.lagging and self._has_room(box):
            self._catch_up(box)  # memory was short when this was due
        return box.lagging == 0 and self._has_room(box)

    cdef int set_hwm(self, Py_ssize_t hwm) except -1:
        self.hwm = hwm
        for box in {box for _, box in self.late.values()}:
            self._catch_up(box)
        return self.recv_queue.arrived(self) if self.ready() else 0

    cdef int deposit(self, object message, Peer peer) except -1:
        """Accepts a message of *peer* (bytes, or a tuple of them), if there is room."""
        cdef Box box = self._box_of(peer)
        if not self._lets_in(box):
            self.recv_queue.dropped += 1
            return 0
        self._put(box, message, None)
        return self.recv_queue.arrived(self)

    cdef int note_subscription(
            self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe, bint change) except -1:
        """Accepts the beginning or the end of a peer's subscription to a prefix.

        *change*: the prefix is new to all subscribers, or was dropped by the last. Without room only a change is kept.
        """
        cdef Box box = self._box_of(peer)
        cdef bytes word = asking(prefix, size, subscribe)
        cdef bytes key
        cdef void *address = <void *>peer
        if self.each:
            # While messages of a peer are kept the peer is, too, so no other object has its address.
            key = PyBytes_FromStringAndSize(NULL, sizeof(address) + size)
            memcpy(PyBytes_AS_STRING(key), &address, sizeof(address))
            memcpy(PyBytes_AS_STRING(key) + sizeof(address), prefix, size)
        else:
            key = PyBytes_FromStringAndSize(prefix, size)
        if self._lets_in(box) and key not in self.late:
            self._put(box, word, key)
            return self.recv_queue.arrived(self)
        # Without room a repetition is dropped: the subscriptions are the same.
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
        pause_gc()  # a finalizer must not find an incomplete heap
        try:
            if key is not None and not self.each:
                before = self._said.get(key)
                if before is not None and before >= place:
                    place = <long long>before + 1
                self._said[key] = place
            heappush(self._heap, (place, self._number + 1, message, box, key))
        finally:
            resume_gc()
        self._number += 1
        box.place = place
        box.waiting += 1
        return 0

    cdef int _keep(self, Box box, bytes word, bytes key) except -1:
        """Keeps a change until a slow user has room for it.

        Changes of one prefix alternate: one and its opposite cancel out. So no more is kept than the difference between
        the subscriptions that the user was given and those that exist.
        """
        kept = self.late.get(key)
        if kept is not None:
            (<Box>(<tuple>kept)[1]).lagging -= 1
            del self.late[key]
            return 0
        pause_gc()
        try:
            if box.order is None:
                box.order = deque()
            elif len(box.order) > 2 * box.lagging + MAX_STALE_KEYS:
                # Each key once: a change that was kept, cancelled and kept again has several entries.
                box.order = deque(dict.fromkeys([old for old in box.order if self._is_of(old, box)]))
            box.order.append(key)
            self.late[key] = word, box
        finally:
            resume_gc()
        box.lagging += 1
        return 0

    cdef bint _is_of(self, object key, Box box) except -1:
        """Returns whether a change under this key is kept for that peer."""
        kept = self.late.get(key)
        return kept is not None and (<tuple>kept)[1] is box

    cdef int _catch_up(self, Box box) except -1:
        """Moves kept changes in while there is room. The caller notifies the user."""
        while box.lagging and self._has_room(box):
            key = box.order[0]
            if self._is_of(key, box):
                self._put(box, (<tuple>self.late[key])[0], key)
                del self.late[key]
                box.lagging -= 1
            box.order.popleft()
        return 0

    # ------------------------------------------------------------------ messages out

    cdef object _message(self):
        if self._first is None:
            pause_gc()
            try:
                self._first = heappop(self._heap)
            finally:
                resume_gc()
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
                # The user has just taken a message and must not lose it because of this error.
                self.log_error(error)
        return 0

    cdef int fail(self, object error) except -1:
        return 0  # the sender of the last message is not at fault
