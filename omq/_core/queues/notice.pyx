"""Messages of the socket itself to its user, about a peer that has come or gone."""

cimport cython

from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport Peer, RecvQueue

from collections import deque

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)  # the length of a deque, without a call


@cython.final
cdef class Notice(ObjectPeer):
    """Messages of the socket itself to its user, about a peer: the user takes them as if the peer had sent them.

    Args:
        session: The session of the peer.
        peer: The peer; the messages have its identity and origin.
        messages: Each is bytes, or a tuple of several of them.
    """

    def __init__(self, session: Any, Peer peer not None, messages: Iterable[bytes | tuple[bytes, ...]]) -> None:
        self.session = session
        self.identity = peer.identity
        self.routing_id = peer.routing_id
        # Like a lost peer of the same origin: the next peer from there does not overtake it.
        self.origin = peer.origin
        self.lost = True
        self._messages = deque(messages)

    def stand(self, RecvQueue recv_queue not None, Peer after: Peer | None = None) -> None:
        """Joins the line of a receive queue, after all messages of *after*; under the lock of the socket."""
        cdef Peer other = after
        self.recv_queue = recv_queue
        self.queued = True
        if after is not None and not after.queued and after.recv_queue is recv_queue and after.ready():
            recv_queue.arrived(after)  # another thread has put messages there, and its notification is on its way
        # A peer without messages stays in line until the next check: its heir would come after newer ones.
        if after is not None and after.queued and (after.ready() or after.heir is not None):
            while other.heir is not None:
                other = other.heir
            other.heir = self
        elif self.origin is None or recv_queue._tail is None or not recv_queue._waits_for(self):
            recv_queue._enqueue(self)
        recv_queue.wait_queue.notify()

    cdef Py_ssize_t ready(self) noexcept:
        return Py_SIZE(self._messages)

    cdef object _message(self):
        return self._messages[0]

    cdef int _taken(self) except -1:
        self._messages.popleft()
        self._part = 0
        return 0

    cdef int fail(self, object error) except -1:
        return 0  # there is no connection
