"""Send queues whose messages name their receiver: by their first part, or by the request that they answer."""

cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from omq._core.wire.send_buffer cimport STACK_PARTS, Part
from omq._core.queues.recv_queue cimport ReplyRecvQueue
from omq._core.queues.send_queue cimport fill_part, part_bytes
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.peer cimport SendQueue, Peer

from omq.errors import StateError, UnroutableError


cdef inline object name_of(Peer peer):
    """Returns the name that calls use for a peer."""
    return peer.identity if peer.routing_id is None else peer.routing_id


cdef class RoutedSendQueue(SendQueue):
    """Gives each peer a name: on ROUTER its identity, the first part (RFC 28), else a number, the call's route.

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait for one peer; 0 for no bound.
        mandatory: An unknown peer is an error, and a full one makes `send` wait.

    Attributes:
        table: Peers by identity, or by number where they have one.
    """
    # stub: table: dict[bytes | int, Peer]

    def __init__(self, WaitQueue wait_queue, hwm: int, mandatory: bool) -> None:
        self.hwm = hwm
        self.table = {}
        self._roomy = {}
        self.mandatory_ = mandatory
        # A message that waits for a full peer must not hold up one for another peer.
        wait_queue.apart = True

    def set_mandatory(self, bint mandatory) -> None:
        self.mandatory_ = mandatory
        self.wait_queue.notify()

    cdef int attach(self, Peer peer) except -1:
        self.table[name_of(peer)] = peer
        self._roomy[peer] = None
        self.wait_queue.notify()
        return 0

    cdef int detach(self, Peer peer) except -1:
        if self.table.get(name_of(peer)) is peer:
            del self.table[name_of(peer)]
        self._roomy.pop(peer, None)
        self.wait_queue.notify()
        return 0

    cdef int opened(self, Peer peer) except -1:
        SendQueue.opened(self, peer)
        if peer.attached:
            self._roomy[peer] = None
        self.wait_queue.notify()
        return 0

    cdef int blocked(self, Peer peer) except -1:
        SendQueue.blocked(self, peer)
        # The peer may have taken a part of the waiting messages.
        if self.mandatory_ and peer.attached and peer.parked < self.hwm:
            self._roomy[peer] = None
            self.wait_queue.notify()
        return 0

    cdef bint _full(self, Peer peer) except -1:
        if self.hwm == 0 or peer.pending() < self.hwm:
            return False
        if peer.writable:
            peer.flush()
        return peer.pending() >= self.hwm

    cdef bint can_put(self) except -1:
        """Returns True without mandatory, as libzmq does: messages are dropped; with it, while any peer has room."""
        cdef Peer peer
        if not self.mandatory_:
            return True
        # A peer that was found full is not asked again before it reports room: no more checks than messages.
        while self._roomy:
            peer = <Peer>self._roomy.popitem()[0]
            if not self._full(peer) and peer.attached:  # a write that fails ends the peer
                self._roomy[peer] = None
                return True
        # No peer has reported room: an inproc peer does when half of its queue is free, and the mark may have been
        # raised.
        for peer in self.table.values():
            if self.hwm == 0 or peer.pending() < self.hwm:
                self._roomy[peer] = None
        return bool(self._roomy)

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        if count < 2:
            raise StateError("a ROUTER socket sends at least two parts: the peer's identity and the message")
        return RoutedSendQueue.put_to(self, part_bytes(parts), parts + 1, count - 1)

    cdef Peer _find(self, object route):
        """Returns the peer of a name. Without such a peer: None, or an error if `mandatory_`."""
        cdef Peer peer = self.table.get(route)
        if peer is None and self.mandatory_:
            what = "identity" if type(route) is bytes else "routing id"
            raise UnroutableError(f"no connected peer has the {what} {route!r}")
        return peer

    cdef int put_to(self, object route, const Part *parts, Py_ssize_t count) except -1:
        cdef Peer peer = self._find(route)
        if peer is None:
            self.dropped += 1
            return 1  # RFC 28: an unroutable message is dropped, or reported
        if self._full(peer):
            if self.mandatory_:
                self._roomy.pop(peer, None)
                return 0
            peer.dropped += 1
            return 1
        if not peer.send(parts, count):
            self.dropped += 1  # the peer is gone, and the notification is on its way
        return 1


@cython.final
cdef class StreamSendQueue(RoutedSendQueue):
    """STREAM: bytes for the peer that the first part names; an empty part closes it (zmq_socket(3), ZMQ_STREAM).

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait for one peer; 0 for no bound.
    """

    def __init__(self, WaitQueue wait_queue, hwm: int) -> None:
        RoutedSendQueue.__init__(self, wait_queue, hwm, True)

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Peer peer
        if count != 2:
            raise StateError(
                f"a STREAM socket sends two parts, the peer's id and bytes for it, and this message has {count}")
        if parts[1].size:
            return RoutedSendQueue.put_to(self, part_bytes(parts), parts + 1, 1)
        peer = self._find(part_bytes(parts))
        peer.dismiss()
        # It stays attached: its accepted messages still leave, and count until then.
        self.detach(peer)
        return 1


cdef class ReplySendQueue(SendQueue):
    """REP: the reply goes to the peer that asked, after the envelope of the request (RFC 28)."""

    def __init__(self, wait_queue: WaitQueue, hwm: int, recv_queue: ReplyRecvQueue) -> None:
        self.hwm = hwm
        self._recv_queue = recv_queue
        self._peers = set()

    cdef int attach(self, Peer peer) except -1:
        self._peers.add(peer)
        return 0

    cdef int detach(self, Peer peer) except -1:
        self._peers.discard(peer)
        self.wait_queue.notify()
        return 0

    cdef bint can_put(self) except -1:
        return self._recv_queue.client is not None

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Part few[STACK_PARTS]
        cdef Part *whole = few
        cdef Py_ssize_t i, head
        cdef ReplyRecvQueue recv_queue = self._recv_queue
        cdef Peer client = recv_queue.client
        cdef list envelope = recv_queue.envelope
        if client is None:
            raise StateError("a REP socket takes a request before it replies")
        head = len(envelope)
        recv_queue.client = None
        recv_queue.envelope = None
        # The next request may have arrived already, and can be taken from now on.
        recv_queue.wait_queue.notify()
        if client.attached and self.hwm and client.pending() >= self.hwm and client.writable:
            client.flush()
        if not client.attached or (self.hwm and client.pending() >= self.hwm):
            # The client is gone, or does not read. RFC 28: discard the reply.
            if client.attached:
                client.dropped += 1
            else:
                self.dropped += 1
            self.wait_queue.notify()
            return 1
        if head + count > STACK_PARTS:
            whole = <Part *>malloc((head + count) * sizeof(Part))
            if whole == NULL:
                raise MemoryError()
        try:
            for i in range(head):
                fill_part(whole + i, <bytes>envelope[i])
            memcpy(whole + head, parts, count * sizeof(Part))
            if not client.send(whole, head + count):
                self.dropped += 1
        except MemoryError:
            # Nothing was sent: a shorter reply may do.
            recv_queue.client = client
            recv_queue.envelope = envelope
            raise
        finally:
            if whole != few:
                free(whole)
        return 1
