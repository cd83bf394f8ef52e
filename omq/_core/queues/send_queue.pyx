"""Send queues: the socket types' choice of the peers that get a message."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from omq._core.wire.send_buffer cimport BATCH_MESSAGES, MAX_INLINE_BYTES, SPARSE_NS, STACK_PARTS, Part
from omq._core.clock cimport now_ns
from omq._core.wire.waiting cimport WaitingMessages
from omq._core.wire.frame_reader cimport Run
from omq._core.wire.framing cimport FLAG_MORE, LONG_HEADER_BYTES, write_header
from omq._core.queues.recv_queue cimport RequestRecvQueue
from omq._core.queues.matcher cimport Matcher
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.peer cimport TURN_MESSAGES, SendQueue, Peer

import random

from omq.errors import StateError
from omq.process_hooks import run_in_child

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)  # the length of a deque, without a call

cdef enum:
    BURST_MESSAGES = 8     # messages without a pause after which those for several peers gather
    FEW_PEERS = 2          # peers up to which a publisher's batches are as large as those of other sockets
    SCRATCH_BYTES = 16384  # a message whose frames fit is encoded once for all subscribers


# Not from the system each time: `os.urandom` releases the GIL, and next to busy threads it comes back late.
_serials = random.Random()
run_in_child(_serials.seed)


cdef object hold(const Part *parts, Py_ssize_t count):
    """Returns a message as an object that outlives the call: a body that waits, or a tuple of bodies."""
    cdef Py_ssize_t i
    if count == 1:
        return part_body(parts)
    return tuple([part_body(parts + i) for i in range(count)])


cdef object message_bytes(const Part *parts, Py_ssize_t count):
    """Returns a message for a receiver: bytes, or a tuple of bytes."""
    cdef Py_ssize_t i
    if count == 1:
        return part_bytes(parts)
    return tuple([part_bytes(parts + i) for i in range(count)])


cdef int send_held(Peer peer, object message) except -1:
    cdef Part few[STACK_PARTS]
    cdef Part only
    cdef Part *parts = few
    cdef Py_ssize_t i, count
    if type(message) is not tuple:
        fill_held(&only, message)
        return peer.send(&only, 1)
    few[0].size = 0  # for the C compiler, which cannot know that there is at least one part
    count = len(<tuple>message)
    if count > STACK_PARTS:
        parts = <Part *>malloc(count * sizeof(Part))
        if parts == NULL:
            raise MemoryError()
    try:
        for i in range(count):
            fill_held(parts + i, (<tuple>message)[i])
        return peer.send(parts, count)
    finally:
        if parts != few:
            free(parts)


cdef class RoundRobin(SendQueue):
    """One queue; each message goes to the next peer that can be written (PUSH, DEALER, PAIR).

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait; 0 for no bound.
        conflate: Keep only the newest message that waits.
        immediate: Accept nothing while there is no peer.

    Attributes:
        queue: Accepted messages that were not yet given to a peer.
        immediate: Accept nothing while there is no peer; any thread may set it.
    """

    def __init__(self, wait_queue: WaitQueue, hwm: int, conflate: bool = False, immediate: bool = False) -> None:
        self.hwm = hwm
        self.queue = WaitingMessages()
        self._open = []
        self._conflate = conflate
        self.immediate = immediate
        self._background_sends = True
        self.quick = True

    @property
    def idle(self):
        return self.queue.count() == 0 and self.parked == 0

    def set_immediate(self, bint immediate) -> None:
        """Sets `immediate`, and wakes the calls that need not wait for a peer any more."""
        self.immediate = immediate
        self.wait_queue.notify()

    cdef int given(self, Peer peer) except -1:
        """Notes that *peer* gets a message, or with None, that it did not get it."""
        return 0

    def entrust(self, Peer peer not None):
        cdef bint taken = True
        while taken and self.queue.count() and not peer.lost:
            taken = self._give(peer)

    cdef bint _give(self, Peer peer) except -1:
        """Gives the first waiting message to *peer*; False: the peer is gone, and the message stays."""
        cdef long long before = peer.messages_out
        cdef Py_ssize_t returns = self._returns
        cdef bint taken = False
        cdef WaitingMessages queue = self.queue
        message = queue.begin()
        if message is None:
            return True  # the background thread was quicker
        try:
            self.given(peer)  # before the peer gets it: it may give it back
            taken = send_held(peer, message)
        finally:
            if not taken and peer.messages_out == before and self._returns == returns:
                self.given(None)
                queue.append_left(message)  # no memory; or the peer is gone, and the notification is on its way
            queue.end()
        return taken

    def close(self) -> None:
        """Drops the schedule and the waiting messages: the socket is closed."""
        SendQueue.close(self)
        self.queue.take_all()

    def surrender(self, list messages not None: list[bytes | tuple[bytes, ...]]) -> None:
        """Moves the waiting messages to the end of *messages*: all of them or, if it raises, not any."""
        messages.extend(self.queue.take_all())  # no bytecode: no signal handler comes between
        self.wait_queue.notify()

    def deliver(self, Peer peer not None, list messages not None: list[bytes | tuple[bytes, ...]]) -> None:
        """Gives *messages* to a peer outside routing; messages that it cannot take stay in the list."""
        cdef Py_ssize_t done = 0, run
        try:
            while done < len(messages) and not peer.lost:
                run = peer.send_run(messages, done, TURN_MESSAGES)
                if run == 0:
                    if not send_held(peer, messages[done]):
                        break  # the peer is gone, and the notification is on its way
                    run = 1
                done += run
        finally:
            del messages[:done]

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Peer peer = self._choose()
        if peer is None:
            return self._enqueue(parts, count)
        self._next += 1
        self.given(peer)  # before the peer gets the message: it may give it back
        if self.led or Py_SIZE(self._open) == 1:
            self.gathers = False
            peer.send(parts, count)
            return 1
        # Each of many peers gets a message now and then, and looks idle: the caller's own pauses count.
        self._burst = self._burst + 1 if now_ns() - self._last < SPARSE_NS else 0
        self.gathers = self._burst >= BURST_MESSAGES
        peer.send(parts, count)
        self._last = now_ns()
        return 1

    @cython.final
    cdef Peer _choose(self):
        """Returns the peer for the next message, with room for it; None: no such peer, and the message waits."""
        cdef Peer peer
        while self.queue.count() == 0 and self._open:
            if self._next >= len(self._open):
                self._next = 0
            peer = <Peer>self._open[self._next]
            if not peer.writable:
                # The only peer is blocked; or it is a pipe that the other side has closed, and the notification is on
                # its way.
                if len(self._open) == 1:
                    return None
                self._open.remove(peer)
                continue
            if self.hwm and peer.pending() >= self.hwm:
                peer.flush()
                if not peer.writable:
                    continue
            return peer
        return None

    cdef bint put_quickly(self, const Part *part) except -1:
        cdef Py_ssize_t peers = Py_SIZE(self._open)
        if self.queue.count() or peers == 0:
            return False
        if peers == 1:
            return (<Peer>PyList_GET_ITEM(self._open, 0)).send_quickly(part, self.hwm)
        if self._next >= peers:
            self._next = 0
        if not (<Peer>PyList_GET_ITEM(self._open, self._next)).send_quickly(part, self.hwm):
            return False
        self._next += 1
        return True

    cdef Py_ssize_t put_run(self, list messages, Py_ssize_t start) except -1:
        cdef Peer peer
        cdef Py_ssize_t limit = TURN_MESSAGES
        # With several peers each message has its own turn.
        if self.queue.count() or len(self._open) != 1:
            return 0
        peer = <Peer>self._open[0]
        if self.hwm:
            limit = min(limit, self.hwm - peer.pending())
        return peer.send_run(messages, start, limit) if limit > 0 else 0

    cdef Py_ssize_t room_for_run(self) except -1:
        cdef Peer peer
        # With several peers each message has its own turn.
        if self.queue.count() or len(self._open) != 1:
            return 0
        if self.single_part:
            return 0  # the source's frames may be parts of one message, which this type must not send (RFC 49, SCATTER)
        peer = <Peer>self._open[0]
        if not peer.takes_frames():
            return 0
        return TURN_MESSAGES if self.hwm == 0 else max(self.hwm - peer.pending(), 0)

    cdef int put_frames(self, const Run *run) except -1:
        return (<Peer>self._open[0]).send_frames(run)

    cdef bint _has_room(self) noexcept:
        if self.immediate and self._attached == 0:
            return False
        return self.hwm == 0 or self._conflate or self.queue.count() + self.parked < self.hwm

    cdef bint can_put(self) except -1:
        # Messages that fill a peer to the mark are written first, as in `put`: only then it shows whether there is
        # room.
        return self._choose() is not None or self._has_room()

    cdef Py_ssize_t waiting(self) noexcept:
        return self.queue.count()

    cdef bint _has_open(self) except -1:
        """Returns whether a peer can be written."""
        return len(self._open) > 1 or (len(self._open) == 1 and (<Peer>self._open[0]).writable)

    cdef int _enqueue(self, const Part *parts, Py_ssize_t count) except -1:
        if not self._has_room():
            return 0
        if self._conflate:
            self.dropped += len(self.queue.take_all())
        self.queue.append(hold(parts, count))
        if not self._scheduled and self._has_open():
            self._pump()  # a signal handler has raised while this was scheduled
        return 1

    cdef int recall(self, Peer peer) except -1:
        cdef list messages = peer.reclaim()
        if peer in self._open:
            self._open.remove(peer)
        self.parked -= peer.parked
        peer.parked = 0
        if messages:
            self._returns += 1
            self._put_back(peer, messages)
            self._pump()
        self.wait_queue.notify()
        return 0

    cdef int _put_back(self, Peer peer, list messages) except -1:
        """Puts messages that *peer* has given back in front of newer ones."""
        if not self._conflate:
            self.queue.put_back(messages)
        elif self.queue.count() == 0:
            self.queue.append(messages[len(messages) - 1])
        return 0

    cdef int attach(self, Peer peer) except -1:
        self._attached += 1
        peer.settle_at(self)
        if self._background_sends:
            peer.set_background_queue(self.queue)
        if peer.writable:
            self._open.append(peer)
            self._pump()
        self.wait_queue.notify()
        return 0

    cdef int detach(self, Peer peer) except -1:
        self._attached -= 1
        peer.set_background_queue(None)
        if peer in self._open:
            self._open.remove(peer)
        self.wait_queue.notify()
        return 0

    cdef int lost(self, Peer peer) except -1:
        return self.recall(peer)

    cdef int opened(self, Peer peer) except -1:
        SendQueue.opened(self, peer)
        if peer.attached and peer not in self._open:
            self._open.append(peer)
        self._pump()
        self.wait_queue.notify()
        return 0

    cdef int blocked(self, Peer peer) except -1:
        cdef Py_ssize_t before = self.parked
        SendQueue.blocked(self, peer)
        # The last peer stays: to empty and refill a list would allocate its memory again each time.
        if len(self._open) > 1 and peer in self._open:
            self._open.remove(peer)
        if self.parked < before:
            self.wait_queue.notify()
        return 0

    cdef int _pump(self) except -1:
        """Gives one turn's worth of waiting messages to the peers that can be written."""
        cdef Peer peer
        cdef Py_ssize_t left = TURN_MESSAGES * len(self._open)
        while self.queue.count() and self._open and left > 0:
            left -= 1
            if self._next >= len(self._open):
                self._next = 0
            peer = <Peer>self._open[self._next]
            if not peer.writable:
                if len(self._open) == 1:
                    break
                self._open.remove(peer)
                continue
            self._next += 1
            if not self._give(peer) and peer in self._open:
                self._open.remove(peer)
        if self.queue.count() and self._has_open() and not self._scheduled:
            self._schedule()
            self._scheduled = True
            if self._background_sends:
                for peer in self._open:
                    peer.note_waiting()
        return 0

    cdef int _flush_turn(self) except -1:
        SendQueue._flush_turn(self)
        if self.queue.count() and self._has_open():
            self._pump()
        # Also for room that the background thread has made, even if it has filled the kernel again.
        self.wait_queue.notify()
        return 0


cdef class RequestSendQueue(RoundRobin):
    """REQ: one request at a time, after an empty delimiter (RFC 28)."""

    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        recv_queue: RequestRecvQueue,
        immediate: bool = False,
    ) -> None:
        RoundRobin.__init__(self, wait_queue, hwm, False, immediate)
        self.quick = False
        self._background_sends = False  # a request that is given up must not leave
        self._recv_queue = recv_queue
        # At random, as in libzmq: a late reply to an earlier socket of the same identity must match no request here.
        self._serial = _serials.getrandbits(32)

    def configure(self, *, bint relaxed=False, bint correlate=False) -> None:
        """Sets the rules of the next request.

        Args:
            relaxed: It may be sent before the reply to the one before.
            correlate: It has an id, which its reply must have.
        """
        self._relaxed = relaxed
        self._correlate = correlate
        self.wait_queue.notify()

    cdef Py_ssize_t put_run(self, list messages, Py_ssize_t start) except -1:
        return 0

    cdef Py_ssize_t room_for_run(self) except -1:
        return 0

    cdef bint can_put(self) except -1:
        return (self._relaxed or not self._recv_queue.awaiting or self._recv_queue.hopeless()) and RoundRobin.can_put(self)

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Part few[STACK_PARTS]
        cdef Part *whole = few
        cdef Py_ssize_t head = 1
        cdef int done = 0
        cdef RequestRecvQueue recv_queue = self._recv_queue
        cdef Peer asked = recv_queue.asked
        cdef WaitingMessages older = None
        request_id = None
        if recv_queue.awaiting:
            if not self._relaxed and not recv_queue.hopeless():
                raise StateError("a REQ socket takes the reply before it sends the next request")
            # The older request is given up: if it has not left yet, it is dropped (ZMQ_REQ_RELAXED).
            older = self.queue
            self.queue = WaitingMessages()
            if not RoundRobin.can_put(self):
                self.queue = older if older.count() else self.queue  # a peer that is asked for room may give it back
                return 0
            older = older if older.count() else self.queue
            self.queue = WaitingMessages()
            asked = recv_queue.asked
        if recv_queue._head is not None or recv_queue._stash is not None:
            recv_queue.clear()
        if count + 2 > STACK_PARTS:
            whole = <Part *>malloc((count + 2) * sizeof(Part))
            if whole == NULL:
                raise MemoryError()
        try:
            if self._correlate:
                self._serial += 1
                request_id = self._serial.to_bytes(4, "big")
                fill_part(whole, request_id)
                head = 2
            whole[head - 1].data = b""
            whole[head - 1].size = 0
            whole[head - 1].owner = NULL
            memcpy(whole + head, parts, count * sizeof(Part))
            recv_queue.asked = None
            done = RoundRobin.put(self, whole, head + count)
            if done:
                recv_queue.gone = False
                recv_queue.awaiting = True
                recv_queue.request_id = request_id
            return done
        finally:
            if not done:
                # Nothing was sent: the older request remains valid.
                recv_queue.asked = asked
                if older is not None:
                    self.queue = older
            if whole != few:
                free(whole)

    def surrender(self, list messages not None):
        if self.queue.count():
            self._recv_queue.gone = True  # no caller gets the reply: the next request may go out
        RoundRobin.surrender(self, messages)

    cdef int given(self, Peer peer) except -1:
        self._recv_queue.asked = peer
        return 0

    cdef int _put_back(self, Peer peer, list messages) except -1:
        if self._recv_queue.asked is not peer:
            return 0  # it was given up: there is a newer one, or the reply has come
        self._recv_queue.asked = None
        self.queue.append(messages[len(messages) - 1])  # earlier ones were given up (ZMQ_REQ_RELAXED)
        return 0


cdef class Distributor(SendQueue):
    """Sends each message to every subscriber whose prefixes it matches (PUB, XPUB; RFC 29).

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait for one peer; 0 for no bound.
        matcher: The subscriptions; `None` sends every message to every peer.
        conflate: Keep the newest message for a peer that cannot be written, and drop no message.
    """
    # stub: matcher: Matcher | None

    def __cinit__(self, *_, **__):
        self._scratch = <char *>malloc(SCRATCH_BYTES)
        if self._scratch == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self._scratch)
        free(self._targets)

    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        matcher: Matcher | None,
        conflate: bool = False,
    ) -> None:
        self.hwm = hwm
        self.matcher = matcher
        self.peers = []
        self._free = []
        self._newest = {} if conflate else None

    @property
    def idle(self):
        return self.parked == 0 and not (self._newest and any(map(len, self._newest.values())))

    cdef int attach(self, Peer peer) except -1:
        cdef void *memory
        cdef Py_ssize_t room = len(self.peers) + 1
        # Allocate first: if there is no memory, nothing has changed.
        if self._room < room:
            memory = realloc(self._targets, 2 * room * sizeof(int))
            if memory == NULL:
                raise MemoryError()
            self._targets = <int *>memory
            self._room = 2 * room
        if self._free:
            peer.slot = self._free.pop()
            self.peers[peer.slot] = peer
        else:
            self.peers.append(peer)
            peer.slot = <int>room - 1
        self._adapt(self.hwm)
        if self._newest is not None:
            self._newest[peer] = waiting = WaitingMessages()
            peer.set_background_queue(waiting)
        return 0

    def set_hwm(self, Py_ssize_t hwm):
        self._adapt(hwm)
        SendQueue.set_hwm(self, hwm)

    cdef int _adapt(self, Py_ssize_t hwm) except -1:
        """Makes batches larger for many peers: each write wakes a peer, and together they take the publisher's core.

        A caller that ends each turn itself leaves no batch, and so has large batches for few peers, too.
        """
        self.most = MAX_BATCH_MESSAGES
        if not self.led:
            self.most = min(max(BATCH_MESSAGES, BATCH_MESSAGES * self._number() // FEW_PEERS), MAX_BATCH_MESSAGES)
        if hwm:
            self.most = min(self.most, max(BATCH_MESSAGES, hwm // 2))
        return 0

    cdef Py_ssize_t _number(self) except -1:
        """Returns roughly the number of peers: those that are leaving still count."""
        return len(self.peers) - len(self._free)

    cdef int detach(self, Peer peer) except -1:
        self.peers[peer.slot] = None
        if self.matcher is None:
            self._free.append(peer.slot)
        self._adapt(self.hwm)
        if self._newest is not None:
            self._newest.pop(peer, None)
            peer.set_background_queue(None)
        self.wait_queue.notify()
        return 0

    cdef int opened(self, Peer peer) except -1:
        cdef WaitingMessages waiting = None if self._newest is None else self._newest.get(peer)
        SendQueue.opened(self, peer)
        message = None if waiting is None else waiting.begin()
        if message is not None:
            try:
                send_held(peer, message)
            finally:
                waiting.end()
        self.wait_queue.notify()
        return 0

    cdef int blocked(self, Peer peer) except -1:
        SendQueue.blocked(self, peer)
        if self._nodrop:
            self.wait_queue.notify()
        return 0

    cdef bint can_put(self) except -1:
        # Without nodrop a full subscriber never keeps the publisher waiting; with it, each message asks all peers.
        return not self._nodrop or not any(peer is not None and self._full(peer) for peer in self.peers)

    cdef Py_ssize_t _select(self, const Part *first) except -1:
        """Puts the slots of the message's receivers into `_targets`; returns their number."""
        cdef Py_ssize_t i, n = 0
        cdef int hits
        cdef const int *slots
        if self.matcher is None:
            for i in range(len(self.peers)):
                if self.peers[i] is not None:
                    self._targets[n] = <int>i
                    n += 1
            return n
        hits = self.matcher.c_match(first.data, first.size)
        slots = self.matcher.c_matched()
        if not self._invert:
            if hits:
                memcpy(self._targets, slots, hits * sizeof(int))
            return hits
        matched = {slots[i] for i in range(hits)}
        for i in range(len(self.peers)):
            if self.peers[i] is not None and i not in matched:
                self._targets[n] = <int>i
                n += 1
        return n

    cdef bint _full(self, Peer peer) except -1:
        if self.hwm == 0 or peer.pending() < self.hwm:
            return False
        if peer.writable:
            peer.flush()
        return peer.pending() >= self.hwm

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Py_ssize_t i, size
        cdef Py_ssize_t n = self._select(parts)
        cdef Peer peer
        cdef bint quick
        cdef bint written = False
        cdef long long now = 0
        if n == 0:
            return 1
        if self._nodrop:
            for i in range(n):
                peer = <Peer>self.peers[self._targets[i]]
                if peer is not None and self._full(peer):
                    return 0
        size = self._encode(parts, count) if n > 1 else 0
        if not self.led:
            # A write to each of many peers takes so long that a peer looks idle: the publisher's own pauses count.
            now = now_ns()
            self.gathers = now - self._last < SPARSE_NS
        quick = size > 0 and self._newest is None
        for i in range(n):
            peer = <Peer>PyList_GET_ITEM(self.peers, self._targets[i])
            if peer is None or (quick and peer.send_encoded_quickly(self._scratch, size, self.hwm)):
                continue
            written = True
            if self._newest is not None and self._hold(peer, parts, count):
                continue
            if self._full(peer):
                peer.dropped += 1
            elif size:
                peer.send_encoded(self._scratch, size, parts, count)
            else:
                peer.send(parts, count)
        if not self.led:
            self._last = now_ns() if written else now
        return 1

    cdef bint _hold(self, Peer peer, const Part *parts, Py_ssize_t count) except -1:
        """Keeps a message for a peer that cannot take it, in place of the one before (ZMQ_CONFLATE)."""
        cdef WaitingMessages waiting
        if peer.writable and self.hwm and peer.pending() >= self.hwm:
            peer.flush()
        if peer.writable or not peer.attached:
            return False
        waiting = self._newest[peer]
        self.dropped += len(waiting.take_all())
        waiting.append(hold(parts, count))
        return True

    cdef Py_ssize_t waiting(self) noexcept:
        cdef WaitingMessages waiting
        cdef Py_ssize_t n = 0
        if self._newest is not None:
            for waiting in self._newest.values():
                n += waiting.count()
        return n

    cdef Py_ssize_t _encode(self, const Part *parts, Py_ssize_t count) noexcept:
        """Encodes a message for all; returns 0 if it is too large for that. Large parts go by reference."""
        cdef Py_ssize_t i, size = 0
        for i in range(count):
            size += LONG_HEADER_BYTES + parts[i].size
            if parts[i].size > MAX_INLINE_BYTES or size > SCRATCH_BYTES:
                return 0
        size = 0
        for i in range(count):
            size += write_header(<unsigned char *>self._scratch + size, FLAG_MORE if i < count - 1 else 0, parts[i].size)
            memcpy(self._scratch + size, parts[i].data, parts[i].size)
            size += parts[i].size
        return size
