"""Receive queues that inspect messages: SUB filters, ROUTER adds the sender, REP and REQ handle the envelope."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from omq._core.queues.matcher cimport Matcher
from omq._core.wire.send_buffer cimport Part
from omq._core.queues.peer cimport NO_MESSAGE, TOO_LARGE, TURN_MESSAGES, RecvQueue, Peer

from omq.errors import MultipartError, StateError


cdef class FilteredRecvQueue(RecvQueue):
    """SUB: drops messages that no subscription covers, as publishers do: a subscription may have ended meanwhile.

    Args:
        wait_queue: The wait queue of receiving calls.
        matcher: The subscriptions.
    """

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher) -> None:
        self.matcher = matcher

    def set_invert(self, bint invert) -> None:
        """Sets whether to return messages that no subscription covers instead (`ZMQ_INVERT_MATCHING`)."""
        self._invert = invert
        self.wait_queue.notify()

    cdef Peer _front(self):
        cdef Peer peer
        cdef const char *data
        cdef Py_ssize_t size
        cdef int left = TURN_MESSAGES
        self.unfinished = False
        while True:
            peer = RecvQueue._front(self)
            if peer is None:
                return None
            if left == 0:
                # A peer that continues to send unwanted messages must not hold up the call.
                self.unfinished = True
                return None
            left -= 1
            data = peer.peek(&size)
            if self.matcher.c_matches_any(data, size) != self._invert:
                return peer
            peer.skip()
            self._taken(peer, size)

    cdef object take_quickly(self):
        cdef const char *data
        cdef Py_ssize_t size
        if self.matcher is not None:
            if not self.has_ready():
                return None
            data = self._head.peek(&size)
            if self.matcher.c_matches_any(data, size) == self._invert:
                return None
        return RecvQueue.take_quickly(self)


cdef class ConflatedRecvQueue(FilteredRecvQueue):
    """Keeps the newest message of each peer (ZMQ_CONFLATE); a SUB still checks it against its subscriptions."""

    def __init__(self, wait_queue: WaitQueue, matcher: Matcher | None = None) -> None:
        FilteredRecvQueue.__init__(self, wait_queue, matcher)
        self.newest_only = True

    cdef int arrived(self, Peer peer) except -1:
        while peer.ready() > 1:
            peer.skip()
            self.dropped += 1
        return RecvQueue.arrived(self, peer)

    cdef Peer _front(self):
        return RecvQueue._front(self) if self.matcher is None else FilteredRecvQueue._front(self)


cdef class ShapedRecvQueue(RecvQueue):
    """Returns messages in another shape than they have on the wire."""

    cdef list _shape(self, Peer peer, list parts):
        """Returns the message for the user; None drops it."""
        return parts

    cdef int _deliver(self) except -1:
        """Notes that the user gets the message in `_stash`."""
        self._stash = None
        return 0

    cdef list _next(self):
        cdef Peer peer
        cdef int left = TURN_MESSAGES
        if self._stash is not None:
            return self._stash
        if self._shaping:
            # Taking a message makes a peer read on, which notifies the watcher of the socket, and the watcher asks for
            # a message: another one would take this one's place. So the watcher is notified again.
            self._asked = True
            return None
        self._shaping = True
        self.unfinished = False
        try:
            while self._stash is None:
                peer = self._pick()
                if peer is None:
                    break
                if left == 0:
                    self.unfinished = True  # an endless run of malformed messages
                    break
                left -= 1
                self._stash = self._shape(peer, self._whole(peer))
        finally:
            self._shaping = False
        if self._asked:
            self._asked = False
            self.wait_queue.notify()
        return self._stash

    cdef bint has_message(self) except -1:
        return self._next() is not None

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        cdef Py_ssize_t i
        if not self.has_message():
            return 0
        for i in range(min(room, len(self._stash))):
            point(parts + i, <bytes>self._stash[i])
        return len(self._stash)

    cdef int drop(self, Py_ssize_t size) except -1:
        return self._deliver()

    cdef Py_ssize_t waiting(self) noexcept:
        return RecvQueue.waiting(self) + (self._stash is not None)

    cdef object take_quickly(self):
        return None

    cdef object take(self):
        cdef list message = self._next()
        if message is None:
            return None
        if len(message) != 1:
            raise MultipartError("the next message has several parts: take it with recv_multipart()")
        self._deliver()
        return message[0]

    cdef object take_any(self):
        cdef list message = self._next()
        if message is None:
            return None
        self._deliver()
        return message[0] if len(message) == 1 else message

    cdef list take_message(self):
        cdef list message = self._next()
        if message is not None:
            self._deliver()
        return message

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        cdef list message = self._next()
        cdef bytes body
        if message is None:
            return NO_MESSAGE
        if len(message) != 1:
            raise MultipartError("the next message has several parts: take it with recv_multipart()")
        body = message[0]
        if len(body) > size:
            return TOO_LARGE
        memcpy(into, PyBytes_AS_STRING(body), len(body))
        self._deliver()
        return len(body)


cdef class RouterRecvQueue(ShapedRecvQueue):
    """ROUTER: the sender's identity comes first (RFC 28)."""

    cdef list _shape(self, Peer peer, list parts):
        parts.insert(0, peer.identity)
        return parts

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        cdef Peer peer
        if self._stash is not None:
            return ShapedRecvQueue.view(self, parts, room)
        peer = self._pick()
        if peer is None:
            return 0
        self._viewed = peer
        point(parts, peer.identity)
        return 1 + peer.view(parts + 1, room - 1)

    cdef int drop(self, Py_ssize_t size) except -1:
        # A thread that was notified of room meanwhile may have asked for a message: that is this one.
        return RecvQueue.drop(self, size) if self._stash is None else self._deliver()


cdef class ReplyRecvQueue(ShapedRecvQueue):
    """REP: the envelope up to the empty delimiter is kept for the reply (RFC 28)."""

    cdef list _shape(self, Peer peer, list parts):
        cdef Py_ssize_t i
        for i in range(len(parts) - 1):
            if len(<bytes>parts[i]) == 0:
                self._asker = peer
                self._route = parts[:i + 1]
                return parts[i + 1:]
        self.dropped += 1
        return None  # RFC 28: a request without delimiter or body is malformed and discarded

    cdef list _known(self):
        return [*RecvQueue._known(self), self._asker, self.client]

    cdef list _next(self):
        if self.client is not None:
            raise StateError("a REP socket replies to a request before it takes the next one")
        return ShapedRecvQueue._next(self)

    cdef bint has_message(self) except -1:
        return self.client is None and ShapedRecvQueue._next(self) is not None

    cdef int _deliver(self) except -1:
        self.client = self._asker
        self.envelope = self._route
        self._asker = None
        self._route = None
        self._stash = None
        return 0


cdef class RequestRecvQueue(ShapedRecvQueue):
    """REQ: only the reply of the peer that was asked counts (RFC 28).

    Attributes:
        awaiting: Whether a request is out, and its reply has not been taken.
    """

    cdef int arrived(self, Peer peer) except -1:
        # RFC 28: discard a reply without a request. Discard it at once: waiting replies would fill the peer's queue,
        # and a full queue is not read, so the end of the peer would show only after the next request went there.
        if self.awaiting and peer is self.asked:
            return RecvQueue.arrived(self, peer)
        return self._discard(peer)

    cdef int _discard(self, Peer peer) except -1:
        """Drops the messages of *peer* that have arrived."""
        while peer.ready():
            peer.skip()
            self.dropped += 1
        return 0

    cdef list _shape(self, Peer peer, list parts):
        cdef Py_ssize_t head = 0 if self.request_id is None else 1
        # RFC 28: not a reply without a request, or of another peer.
        if (self.awaiting and peer is self.asked and len(parts) >= head + 2 and len(<bytes>parts[head]) == 0
                and (head == 0 or parts[0] == self.request_id)):
            return parts[head + 1:]
        self.dropped += 1
        return None

    cdef list _known(self):
        return [*RecvQueue._known(self), self.asked]

    cdef list _next(self):
        if not self.awaiting:
            raise StateError("a REQ socket sends a request before it takes a reply")
        return ShapedRecvQueue._next(self)

    cdef bint has_message(self) except -1:
        return self.awaiting and ShapedRecvQueue._next(self) is not None

    def forget(self, Peer peer not None) -> None:
        """Forgets *peer*, which is gone; earlier messages from it can still be taken."""
        if peer is self.asked:
            self.gone = True

    cdef int clear(self) except -1:
        """Drops the messages that have arrived: they cannot answer the next request."""
        cdef Peer peer = self._head
        self._stash = None
        cdef Peer heir
        while peer is not None:
            heir = peer
            while heir is not None:
                self._discard(heir)
                heir = heir.heir
            peer = peer.next_ready
        if self._paused:
            for peer in tuple(self._paused):
                self._resume(peer)
        return 0

    cdef bint hopeless(self) except -1:
        """Returns whether the reply can never come: the peer with the request is gone, and did not answer before."""
        return self.gone and not self.has_message()

    cdef int _deliver(self) except -1:
        self.awaiting = False
        self.asked = None
        self.clear()
        return 0
