"""Groups of RADIO and DISH: subscriptions that are matched exactly (RFC 48)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport Peer
from omq._core.queues.recv_queue cimport ShapedRecvQueue, point
from omq._core.queues.subscriptions cimport OwnSubscriptions, PublisherSendQueue
from omq._core.wire.send_buffer cimport Part

from omq.errors import MessageTooLarge, RemoteProtocolError, StateError, UsageError

cdef enum:
    MAX_GROUP_BYTES = 255  # bytes (RFC 48, Group)
    JOIN_BYTES = 5         # bytes of "JOIN" and the length before it
    LEAVE_BYTES = 6        # likewise of "LEAVE"


cdef class UnaskedPeer(Peer):
    """A peer that cannot join a group, and gets all of them, up to a message size."""


cdef class RadioSendQueue(PublisherSendQueue):
    """RADIO: each message goes to every peer that has joined its group; a full one misses it (RFC 48)."""

    def __cinit__(self, *_, **__):
        self._unasked = []

    cdef int attach(self, Peer peer) except -1:
        PublisherSendQueue.attach(self, peer)
        if isinstance(peer, UnaskedPeer):
            self._unasked.append(peer)
            self._count_unasked()
        return 0

    cdef int detach(self, Peer peer) except -1:
        if peer in self._unasked:
            self._unasked.remove(peer)
            self._count_unasked()
        return PublisherSendQueue.detach(self, peer)

    cdef int _count_unasked(self) except -1:
        cdef UnaskedPeer peer
        self._limit = 0
        for peer in self._unasked:
            self._limit = min(self._limit or peer.limit, peer.limit)
        return 0

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        raise StateError("group= is missing: a RADIO socket sends each message to a group")

    cdef int put_to(self, object route, const Part *parts, Py_ssize_t count) except -1:
        # RFC 37, The Radio-Dish Pattern: the group is a frame of its own.
        cdef Part both[2]
        point(both, <bytes>route)
        both[1] = parts[0]
        if self._limit and both[0].size + both[1].size > self._limit:
            raise MessageTooLarge(
                f"the message of {both[1].size} bytes and its group of {both[0].size} do not fit into a datagram, which has "
                f"room for {self._limit} bytes: send less, or over tcp"
            )
        return PublisherSendQueue.put(self, both, 2)

    cdef Py_ssize_t _select(self, const Part *first) except -1:
        cdef int hits = self.matcher.c_match_exactly(first.data, first.size)
        cdef const int *slots = self.matcher.c_matched()
        cdef int i
        for i in range(hits):
            self._targets[i] = slots[i]
        if self._limit:
            for peer in self._unasked:
                self._targets[hits] = (<Peer>peer).slot
                hits += 1
        return hits

    cdef bint heed(self, Peer peer, const char *body, Py_ssize_t size) except -1:
        # RFC 37, The Radio-Dish Pattern: the command's data is the group.
        if size >= JOIN_BYTES and memcmp(body, b"\4JOIN", JOIN_BYTES) == 0:
            return self._named(peer, body + JOIN_BYTES, size - JOIN_BYTES, True)
        if size >= LEAVE_BYTES and memcmp(body, b"\5LEAVE", LEAVE_BYTES) == 0:
            return self._named(peer, body + LEAVE_BYTES, size - LEAVE_BYTES, False)
        return False

    cdef bint _named(self, Peer peer, const char *group, Py_ssize_t size, bint join) except -1:
        if size > MAX_GROUP_BYTES or memchr(group, 0, size) != NULL:
            what = "a zero byte" if size <= MAX_GROUP_BYTES else f"{size} bytes"
            peer.fail(RemoteProtocolError(f"the peer names a group with {what} (RFC 48, Group)"))
        else:
            self._asked(peer, group, size, join)
        return True

    cdef int on_message(self, Peer peer, object message) except -1:
        # RFC 48, The RADIO Socket Type: SHALL silently discard any messages that dishes send it. Over inproc they are
        # requests, from a DISH of this library.
        if isinstance(peer, ObjectPeer) and type(message) is bytes:
            self._asked(
                peer, PyBytes_AS_STRING(message) + 1, PyBytes_GET_SIZE(message) - 1, PyBytes_AS_STRING(message)[0] == 1
            )
        return 0


cdef class OwnGroups(OwnSubscriptions):
    """The groups of a DISH, and the peers that it requests their messages from."""

    def join(self, bytes group not None) -> None:
        """Joins a group.

        Raises:
            UsageError: The group is joined already.
        """
        self._change_once(group, True)

    def leave(self, bytes group not None) -> None:
        """Leaves a group.

        Raises:
            UsageError: The group is not joined.
        """
        self._change_once(group, False)

    cdef int _change_once(self, bytes group, bint join) except -1:
        if self._lock is not None:
            self._lock.enter()
        try:
            if self.matcher.c_holds(PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group), 0) == join:
                raise UsageError(f"the group {group!r} is {'joined already' if join else 'not joined'}")
            self.change(PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group), join)
            if not join:
                self._wait_queue.notify()  # waiting messages may be unwanted now
        finally:
            if self._lock is not None:
                self._lock.release()
        return 0


cdef class GroupRecvQueue(ShapedRecvQueue):
    """DISH: the group of a message is kept apart from it; messages of groups that were not joined are dropped.

    Args:
        wait_queue: The wait queue of receiving calls.
        matcher: The groups that were joined.
    """

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher) -> None:
        self.matcher = matcher

    cdef list _shape(self, Peer peer, list parts):
        cdef bytes group = parts[0]
        if len(parts) != 2 or len(group) > MAX_GROUP_BYTES:
            # RFC 37, The Radio-Dish Pattern: a message is a group and one part.
            what = f"a group of {len(group)} bytes" if len(parts) == 2 else f"a message of {len(parts)} part without a group"
            peer.fail(RemoteProtocolError(f"the peer sends {what}"))
            return None
        # The request to leave the group may be on its way; RFC 48 lets it send all groups.
        if not self._wanted(group):
            return None
        self._next_group = group
        del parts[0]
        return parts

    cdef bint _wanted(self, bytes group) noexcept:
        return self.matcher.c_holds(PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group), 0)

    cdef list _next(self):
        if self._stash is not None and not self._wanted(self._next_group):
            self._stash = None  # the group was left
        return ShapedRecvQueue._next(self)

    cdef int _deliver(self) except -1:
        self._group = self._next_group
        return ShapedRecvQueue._deliver(self)

    cdef object last_group(self):
        return None if self._group is None else self._group.decode("utf-8", "surrogateescape")
