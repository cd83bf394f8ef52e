"""The base classes: a peer, the receive queue that takes from peers in turn, the send queue that gives to them."""

# stub: _PeerT = TypeVar("_PeerT", bound=Peer)

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from omq._core.clock cimport now_ns, tick, worked_ns
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.wire.frame_reader cimport Run
from omq._core.wire.framing cimport FLAG_COMMAND, LONG_HEADER_BYTES, SHORT_HEADER_BYTES, MAX_SHORT_BYTES, write_header
from omq._core.wire.send_buffer cimport BATCH_MESSAGES, SPARSE_NS, Part

import logging

from omq.errors import MultipartError, StateError

log = logging.getLogger("omq")


cdef class Peer:
    """The other side of a connection or of an inproc pipe.

    Attributes:
        session: The engine's owner of this peer.
        identity: Its name on a ROUTER.
        routing_id: Its number on SERVER and PEER, or `None`.
        origin: Where it comes from: a successor from there takes its turn after it; `None`: unknown.
        slot: Its number among a send queue's peers; -1 while it has none.
        asking: How it takes subscriptions: 0 as messages, 1 as SUBSCRIBE and CANCEL, 2 as JOIN and LEAVE.
        messages_in: Messages received from it.
        messages_out: Messages accepted for it.
        bytes_in: Bytes received from it, framing included.
        bytes_out: Bytes that left for it, framing included.
        dropped: Messages not sent to it because it was full; of a bound udp endpoint, datagrams that were no message.
        dismissed: Whether the user has closed it, and no other peer.
        lost: Whether the connection is over; messages that have arrived can still be taken.
    """
    # stub: routing_id: int | None

    def __cinit__(self):
        self.slot = -1
        self.identity = b""

    @property
    def is_writable(self) -> bool:
        return self.writable

    @property
    def has_messages(self) -> bool:
        return self.ready() > 0

    def send_parts(self, list parts not None: list[bytes]) -> None:
        """Sends a message of the library's own, regardless of the high-water mark."""
        cdef Py_ssize_t count = PyList_GET_SIZE(parts)
        cdef Part *found = <Part *>malloc(count * sizeof(Part))
        cdef bytes part
        cdef Py_ssize_t i
        if found == NULL:
            raise MemoryError()
        try:
            for i in range(count):
                part = parts[i]
                found[i].data = PyBytes_AS_STRING(part)
                found[i].size = PyBytes_GET_SIZE(part)
                found[i].owner = <PyObject *>part
            self.send(found, count)
        finally:
            free(found)

    @property
    def unsent(self) -> int:
        """Messages that the peer has accepted and that have not left."""
        return self.pending()

    def flush_now(self) -> None:
        """Hands the waiting bytes to the kernel."""
        self.flush()

    def set_hwm_granularity(self, int hwm_granularity) -> None:
        """Sets how exactly unsent messages are counted: the largest step in messages."""

    def set_recv_hwm(self, Py_ssize_t hwm) -> None:
        """Sets how many messages may wait to be taken; 0 for no bound."""

    def pause(self) -> None:
        """Stops reading from this peer."""

    def resume(self) -> None:
        """Reads from this peer again."""

    def hand_to(self, RecvQueue recv_queue not None) -> None:
        """Moves the peer and its waiting messages to another receive queue; the old one must not be used afterwards."""
        self.recv_queue = recv_queue
        self.queued = False
        self.next_ready = self.heir = None
        if self.ready():
            recv_queue.arrived(self)
        self.resume()

    def leave_queue(self) -> None:
        """Leaves its receive queue: messages that have arrived are not taken any more."""
        self.recv_queue = None
        self.queued = False
        self.next_ready = self.heir = None

    @property
    def bytes_out(self) -> int:
        return self.sent_bytes()

    cdef int on_events(self, unsigned int events) except -1:
        """Handles an event of the peer's descriptor (EPOLL*)."""
        raise AssertionError("not a peer with a descriptor")

    cdef int fail(self, object error) except -1:
        """Ends the peer after an error that the running call did not cause."""
        raise AssertionError("the derived class must override fail()")

    cdef int dismiss(self) except -1:
        """Ends the peer, which the user has closed, when it has all messages accepted for it."""
        raise AssertionError("not a peer that the user can close")

    cdef bint only_reads(self) noexcept:
        """Returns whether an event can only mean that there is something to read."""
        return False

    cdef bint sated(self) noexcept:
        """Returns whether enough messages wait that newer ones may stay in the kernel."""
        return False

    cdef bint has_ahead(self) noexcept:
        """Returns whether there are bytes, read ahead of its owner, that may be taken now."""
        return False

    cdef int log_error(self, object error) except -1:
        """Logs an unexpected error."""
        log.error("a connection failed", exc_info=error)
        return 0

    # receiving

    cdef Py_ssize_t ready(self) noexcept:
        """Returns the number of whole messages that can be taken."""
        return 0

    cdef bint head_more(self) noexcept:
        """Returns whether the next part is followed by another of its message."""
        return False

    cdef const char *peek(self, Py_ssize_t *size) except NULL:
        """Returns the next part in place, valid until the next call."""
        raise AssertionError("nothing to take")

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        """Shows the first message, which must exist; see `RecvQueue.view`."""
        raise AssertionError("nothing to take")

    cdef bint view_run(self, Run *run, Py_ssize_t limit) except -1:
        """Shows adjacent messages; see `RecvQueue.view_run`."""
        return False

    cdef int skip_run(self, const Run *run) except -1:
        """Drops the messages that `view_run` has shown."""
        raise AssertionError("nothing to take")

    cdef object take_part(self):
        """Returns the next part as bytes; sets `more`."""
        raise AssertionError("nothing to take")

    cdef object take_alone(self):
        """Returns the next message, if it has one part; None if it has several, and then the message stays."""
        return None if self.head_more() else self.take_part()

    cdef object take_quickly(self):
        """Returns the next message or None; see `RecvQueue.take_quickly`."""
        return None

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        """Copies a one-part message; returns TOO_LARGE if it is larger than *size*, and then the message stays."""
        raise AssertionError("nothing to take")

    cdef bint aim(self, char *into, Py_ssize_t size) except -1:
        """Offers memory for the next message until `withdraw`; returns whether it will be read straight into it."""
        return False

    cdef int withdraw(self) except -1:
        """Takes the offer of `aim` back."""
        return 0

    cdef int skip(self) except -1:
        """Drops the rest of the first message."""
        raise AssertionError("nothing to take")

    cdef int refill(self) except -1:
        """Reads again after a pause."""
        return 0

    # sending

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        """Takes one whole message; only while `writable`, or where the caller has checked `pending`.

        Returns:
            1, also if `home` has since got the message back; 0: the peer is gone, and takes nothing.
        """
        raise AssertionError("not a peer that can be written")

    cdef bint send_quickly(self, const Part *part, Py_ssize_t hwm) except -1:
        """Takes a message or returns False; see `SendQueue.put_quickly`.

        *hwm*: messages of the socket that may wait for this peer; 0 for no bound.
        """
        return False

    cdef bint send_encoded_quickly(self, const char *data, Py_ssize_t size, Py_ssize_t hwm) except -1:
        """Works like `send_quickly`, with a whole message that is encoded already."""
        return False

    cdef int send_encoded(self, const char *data, Py_ssize_t size, const Part *parts, Py_ssize_t count) except -1:
        """Works like `send`, for a message that the caller has encoded once for several peers."""
        return self.send(parts, count)

    cdef Py_ssize_t send_run(self, list messages, Py_ssize_t start, Py_ssize_t limit) except -1:
        """Accepts up to *limit* messages from `messages[start]` on, until one is not `bytes`; returns their number."""
        return 0

    cdef bint takes_frames(self) noexcept:
        """Returns whether `send_frames` can be used now."""
        return False

    cdef int send_frames(self, const Run *run) except -1:
        """Works like `send`, for adjacent whole messages in the form of plain frames."""
        raise AssertionError("not a peer that takes frames")

    cdef int settle_at(self, SendQueue home) except -1:
        """Sets the queue that takes back unsent messages."""
        self.home = home
        return 0

    cdef list reclaim(self):
        """Takes back the accepted messages of which nothing has left; the peer gets nothing new."""
        return []

    cdef int set_background_queue(self, WaitingMessages waiting) except -1:
        """Sets the queue whose messages the background thread sends when the kernel has room; None: no queue."""
        return 0

    cdef int note_waiting(self) except -1:
        """Makes the background thread send to this peer if the owner's next turn is late."""
        return 0

    cdef int note_handed(self) except -1:
        """Counts the messages that the background thread has given to this peer, and wakes calls that wait for room."""
        return 0

    def take_back(self) -> list[bytes | tuple[bytes, ...]]:
        """Takes back the accepted messages of which nothing has left; the peer gets nothing new."""
        return self.reclaim()

    cdef int end_turn(self) except -1:
        """Ends the turn in which messages gathered."""
        return self.flush()

    cdef long long sent_messages(self) noexcept:
        """Returns the number of messages that have left for this peer."""
        return self.messages_out - self.pending() - self.abandoned

    cdef long long sent_bytes(self) noexcept:
        """Returns the number of bytes that have left for this peer."""
        return 0

    cdef Py_ssize_t pending(self) noexcept:
        """Returns the number of accepted messages that have not left."""
        return 0

    cdef int flush(self) except -1:
        """Hands waiting bytes to the kernel."""
        return 0

    cpdef int control(self, bytes frames) except -1:
        """Sends frames that are encoded already, regardless of the high-water mark."""
        raise AssertionError("not a peer that can be written")

    cdef int ask(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        """Requests messages with this prefix from the peer, or cancels that."""
        raise AssertionError("not a peer that can be asked")

    cdef int ask_all(self, list prefixes) except -1:
        """Requests all wanted messages from the peer."""
        raise AssertionError("not a peer that can be asked")

    cpdef int command(self, bytes name, bytes data) except -1:
        """Sends a command of the socket's pattern, which the peer's pattern handles; see `control`."""
        cdef Py_ssize_t counted = 1 + PyBytes_GET_SIZE(name)
        cdef Py_ssize_t size = counted + PyBytes_GET_SIZE(data)
        cdef bytes frame = PyBytes_FromStringAndSize(
            NULL, size + (SHORT_HEADER_BYTES if size <= MAX_SHORT_BYTES else LONG_HEADER_BYTES)
        )
        cdef char *body = PyBytes_AS_STRING(frame)
        # RFC 23, Formal Grammar: command-body = command-name command-data; the name's length comes first.
        body += write_header(<unsigned char *>body, FLAG_COMMAND, size)
        body[0] = <char>PyBytes_GET_SIZE(name)
        memcpy(body + 1, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        memcpy(body + counted, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return self.control(frame)


@cython.final
cdef class EndedPeer(Peer):
    """The counters of a peer whose connection is over."""

    cdef long long _sent

    cdef long long sent_bytes(self) noexcept:
        return self._sent


def ended_peer(Peer peer not None: _PeerT) -> _PeerT:
    """Returns a substitute for a peer whose connection is over: its counters, without references."""
    cdef EndedPeer ended = EndedPeer()
    ended.lost = True
    ended.identity = peer.identity
    ended.routing_id = peer.routing_id
    ended.messages_in = peer.messages_in
    ended.messages_out = peer.messages_out
    ended.bytes_in = peer.bytes_in
    ended._sent = peer.sent_bytes()
    ended.dropped = peer.dropped
    return ended


cdef class RecvQueue:
    """One fair queue over all peers that have messages. Each peer has its turn.

    A turn has 256 messages or 512 KiB at most, and no more than the owner handles in about a millisecond. After as many
    messages, of one peer or of several, the queue checks the descriptors: peers with new messages join the line, and
    the turn is over. So a peer with a message waits for one turn of each other peer, even if those have more.

    Args:
        wait_queue: The wait queue of receiving calls.
    """

    def __cinit__(self, WaitQueue wait_queue not None, *_) -> None:
        self.wait_queue = wait_queue
        self._paused = []
        self._quota = self._sight = TURN_MESSAGES
        self._sight_bytes = TURN_BYTES

    def close(self) -> None:
        """Forgets all peers and their messages: the socket is closed."""
        cdef list found = self._known()
        cdef Peer peer
        self._head = self._tail = None
        self._count = 0
        self._paused = []
        # One after the other: a long line that is freed as one would take much of the stack.
        while found:
            peer = found.pop()
            if peer is not None:
                found.append(peer.next_ready)
                found.append(peer.heir)
                peer.leave_queue()

    cdef list _known(self):
        """Returns the peers that the queue itself refers to; None for some."""
        return [self._head, self._aiming, self._growing, self.last, self._refused, self._viewed]

    cdef bint offer(self, char *into, Py_ssize_t size) except -1:
        """Offers the memory of a call that waits for one message: a large frame may be read straight into it.

        The offer holds until `withdraw`. False: there is an earlier offer by another call.
        """
        cdef Peer peer = self._growing
        if self._target != NULL:
            return False
        self._target = into
        self._target_size = size
        if peer is not None and self.is_idle():
            if peer.aim(into, size):
                self._aiming = peer
            else:
                peer.withdraw()
        return True

    cdef int withdraw(self) except -1:
        """Withdraws the offer: bytes that have come into that memory move out of it."""
        cdef Peer peer = self._aiming
        self._target = NULL
        self._aiming = None
        if peer is not None:
            peer.withdraw()
        return 0

    cdef int arrived(self, Peer peer) except -1:
        """Adds *peer*, which has messages, to the line."""
        if not peer.queued:
            peer.queued = True
            if self._tail is None or peer.origin is None or not self._waits_for(peer):
                self._enqueue(peer)
        self.wait_queue.notify()
        return 0

    cdef int _enqueue(self, Peer peer) except -1:
        if self._tail is None:
            self._head = peer
            self._turn, self._turn_bytes = self._quota, TURN_BYTES
            if self.ticks:
                self._tick = tick()
        else:
            self._tail.next_ready = peer
            if self.last is self._head:
                self._turn = 0  # another peer waits now, and the head has had more than its turn
        self._tail = peer
        self._count += 1
        return 0

    cdef bint _waits_for(self, Peer peer) except -1:
        """Makes *peer* wait for a peer of the same origin that is lost, or has an heir: it must not overtake those."""
        cdef Peer other = self._head
        while other is not None:
            if (other.lost or other.heir is not None) and other is not peer and other.origin == peer.origin:
                while other.heir is not None:
                    other = other.heir
                other.heir = peer
                return True
            other = other.next_ready
        return False

    cdef int paused(self, Peer peer) except -1:
        """Notes that *peer* reads nothing until its messages are taken."""
        self._paused.append(peer)
        return 0

    cdef int _pop(self) except -1:
        """Removes the first peer, which has no more messages, from the line; its heir joins the line."""
        cdef Peer peer = self._head
        cdef Peer heir = peer.heir
        self._head = peer.next_ready
        self._count -= 1
        if self._head is None:
            self._tail = None
        peer.next_ready = peer.heir = None
        peer.queued = False
        self._turn, self._turn_bytes = self._quota, TURN_BYTES
        if heir is not None:
            self._enqueue(heir)
        return 0

    cdef Peer _pick(self):
        """Returns the peer whose message is taken next, or None. Checks the descriptors when they are due."""
        if self._sight <= 0 or self._sight_bytes <= 0 or (self.ticks and self._count and tick() != self._tick):
            self._look()
        return self._front()

    cpdef int hurry(self) except -1:
        """Makes turns short from now on: the owner has worked, or been away, for longer than a turn may last."""
        self._quota = 1
        # A head with no message taken yet keeps its turn, however often this is called before the owner comes.
        self._turn = 0 if self.last is self._head else 1

    cdef int _look(self) except -1:
        """Checks for peers with new messages, and measures the owner's work since the last check."""
        cdef long long now = now_ns()
        cdef long long spent = now - max(self._looked, self._tick)  # before the first message there was no work
        cdef long long share = min(<long long>TURN_NS, <long long>ROUND_NS // max(self._count, 1))
        if spent > share:
            self._quota = max(1, min(self._quota, <Py_ssize_t>((self._quota - self._sight) * share // spent)))
        elif 2 * spent < share:
            self._quota = min(2 * self._quota, <Py_ssize_t>TURN_MESSAGES)
        self._looked = now
        if self.ticks:
            self._tick = tick()
        self._sight = self._quota
        self._sight_bytes = TURN_BYTES
        self._turn = min(self._turn, self._quota)
        return self.wait_queue.look(spent)

    cdef Peer _front(self):
        """Returns the peer whose turn it is and that has a message, or None."""
        cdef Peer peer = self._refused
        if peer is not None:
            if peer.ready():
                return peer
            self._refused = None
        while True:
            peer = self._head
            if peer is None:
                return None
            if peer.ready() == 0:
                self._pop()
                if self._paused:
                    self._resume(peer)
            elif self._turn <= 0 or self._turn_bytes <= 0:
                self._turn, self._turn_bytes = self._quota, TURN_BYTES
                if peer.next_ready is not None:
                    self._head = peer.next_ready
                    peer.next_ready = None
                    self._tail.next_ready = peer
                    self._tail = peer
            else:
                return peer

    cdef void _taken(self, Peer peer, Py_ssize_t size):
        self._turn -= 1
        self._turn_bytes -= size
        self._sight -= 1
        self._sight_bytes -= size
        self.last = peer
        self._refused = None
        if self._paused and peer.ready() == 0:
            self._resume(peer)

    cdef int _resume(self, Peer peer) except -1:
        """Resumes reading from *peer*, whose own messages are taken, regardless of the other peers' messages."""
        if peer in self._paused:
            self._paused.remove(peer)
            try:
                peer.refill()
            except Exception as error:
                # The user has just taken a message and must not get a connection's error for it.
                peer.log_error(error)
                peer.fail(error)
        return 0

    cdef bint has_message(self) except -1:
        """Returns whether `take_message` would return a message now."""
        return self._front() is not None

    cdef object take(self):
        """Returns the next message, or None. A message of several parts raises MultipartError and stays."""
        cdef Peer peer = self._pick()
        if peer is None:
            return None
        part = peer.take_alone()
        if part is None:
            self._refuse(peer)
        self._taken(peer, len(<bytes>part))
        return part

    cdef object take_quickly(self):
        """Returns the next message if that takes few steps, else None. Runs no other code: needs no lock."""
        cdef Peer peer = self._head
        if (peer is None or peer is not self.last or self._refused is not None or self._turn <= 0 or self._turn_bytes <= 0
                or self._sight <= 0 or self._sight_bytes <= 0 or (self.ticks and tick() != self._tick)
                or (PyList_GET_SIZE(self._paused) and peer.ready() <= 1)):
            return None
        part = peer.take_quickly()
        if part is not None:
            self._turn -= 1
            self._sight -= 1
            self._turn_bytes -= PyBytes_GET_SIZE(part)
            self._sight_bytes -= PyBytes_GET_SIZE(part)
        return part

    cdef int _refuse(self, Peer peer) except -1:
        """Rejects the first message of *peer*: it has several parts, and the call takes one. It stays first in line."""
        self._refused = peer
        raise MultipartError("the next message has several parts: take it with recv_multipart()")

    cdef object take_any(self):
        """Returns the next message: bytes if it has one part, else a list; None if there is no message."""
        cdef Peer peer = self._pick()
        if peer is None:
            return None
        part = peer.take_alone()
        if part is None:
            return self._whole(peer)
        self._taken(peer, len(<bytes>part))
        return part

    cdef object last_group(self):
        """Returns the group of the last message (RFC 48); None: the socket type has no groups."""
        return None

    cdef list take_many(self, Py_ssize_t limit):
        """Returns the available messages, up to *limit*, or None.

        The call ends after a while: a peer may send faster than the caller takes.
        """
        cdef list messages = None
        cdef long long looked = self._looked
        cdef long long begun = 0, worked = 0
        cdef long long bound = ROUND_NS // 8 if self.ticks else ROUND_NS // 2
        try:
            while limit > 0:
                message = self.take_quickly()
                if message is None:
                    message = self.take_any()
                    if message is None:
                        break
                    if self._looked != looked:
                        looked = self._looked
                        begun = begun or looked
                        # Only the work of this thread counts. Measuring it costs a system call.
                        if worked and worked_ns() - worked > bound:
                            limit = 1
                        elif worked == 0 and looked - begun > bound:
                            worked = worked_ns()
                if messages is None:
                    messages = []
                messages.append(message)
                message = None
                limit -= 1
        except Exception:
            # For example, memory is short; REP and REQ take one message at a time. Return the messages taken so far.
            if messages is None or message is not None:
                raise
        return messages

    cdef Py_ssize_t waiting(self) noexcept:
        """Returns the number of messages that can be taken now, of all peers."""
        cdef Py_ssize_t n = 0
        cdef Peer peer = self._head
        cdef Peer heir
        while peer is not None:
            n += peer.ready()
            heir = peer.heir
            while heir is not None:
                n += heir.ready()
                heir = heir.heir
            peer = peer.next_ready
        return n

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        """Shows the next message in place, until `drop` or the next call of any kind; it stays first in line.

        Returns:
            Number of its parts: *parts* gets at most *room* of them; 0 if there is no message.
        """
        cdef Peer peer = self._pick()
        if peer is None:
            return 0
        self._viewed = peer
        return peer.view(parts, room)

    cdef int drop(self, Py_ssize_t size) except -1:
        """Takes the message that `view` has shown, of *size* bytes."""
        cdef Peer peer = self._viewed
        peer.skip()
        self._taken(peer, size)
        return 0

    cdef bint view_run(self, Run *run, Py_ssize_t limit) except -1:
        """Shows adjacent messages of one peer, up to *limit*; False: `view` may have one.

        For queues that return all messages unchanged.
        """
        cdef Peer peer = self._pick()
        if peer is None:
            return False
        self._viewed = peer
        return peer.view_run(run, min(limit, self._turn))

    cdef int drop_run(self, const Run *run) except -1:
        """Takes the messages that `view_run` has shown."""
        cdef Peer peer = self._viewed
        peer.skip_run(run)
        self._turn -= run.count - 1
        self._sight -= run.count - 1
        self._taken(peer, run.body)
        return 0

    cdef list take_message(self):
        """Returns the next message, or None."""
        cdef Peer peer = self._pick()
        if peer is None:
            return None
        return self._whole(peer)

    cdef list _whole(self, Peer peer):
        """Returns all parts of the first message of *peer*."""
        cdef Py_ssize_t size = 0
        cdef list parts = []
        part = None
        try:
            while True:
                part = peer.take_part()
                parts.append(part)
                size += len(<bytes>part)
                if not peer.more:
                    break
        except MemoryError:
            if part is not None and peer.more:
                peer.skip()  # the rest of a message is not a message
            raise
        self._taken(peer, size)
        return parts

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        """Copies the next message, of one part; returns its size in bytes, or NO_MESSAGE or TOO_LARGE."""
        cdef Peer peer = self._pick()
        cdef Py_ssize_t has
        if peer is None:
            return NO_MESSAGE
        if peer.head_more():
            self._refuse(peer)
        if self._aiming is not None and self._aiming is not peer and into == self._target:
            self.withdraw()  # another peer was first
        has = peer.take_into(into, size)
        if has >= 0:
            if into == self._target:
                self.withdraw()  # the memory is the caller's again: later bytes must not go there
            self._taken(peer, has)
        else:
            self._refused = peer  # too large: the message stays first in line
        return has


cdef class SendQueue:
    """Gives messages to peers. The derived classes choose the peers.

    Args:
        wait_queue: The wait queue of sending calls.

    Attributes:
        hwm: Messages that may wait; 0 for no bound.
        single_part: A call may give it messages of one part only.
        draining: Waiting batches leave with the loop's turns, which report that, and not by the flusher.
        heeds: Whether it handles peers' commands itself, in their order with the peers' messages.
    """

    def __cinit__(self, WaitQueue wait_queue not None, *_, **__) -> None:
        self.wait_queue = wait_queue
        self._others = []
        self.most = BATCH_MESSAGES

    def set_schedule(self, schedule: Any) -> None:
        """Sets the function that schedules a call of `flush_turn` at the end of the turn; it takes no arguments."""
        self._schedule = schedule

    def set_report(self, report: Any) -> None:
        """Sets the function that schedules a call of `report` in the engine's thread; it takes no arguments."""

    def report(self) -> None:
        """Does nothing: only publishers have something to report."""

    def close(self) -> None:
        """Drops the schedule: the socket is closed."""
        self._schedule = None

    def set_hwm(self, Py_ssize_t hwm) -> None:
        """Changes `hwm`; calls that wait for room try again."""
        self.hwm = hwm
        self.wait_queue.notify()

    def flush_turn(self) -> None:
        """Writes the batches that have gathered."""
        self._flush_turn()

    def add(self, Peer peer not None) -> None:
        """Adds a peer."""
        cdef bint done = False
        peer.send_queue = self
        peer.attached = True
        try:
            self.attach(peer)
            done = True
        finally:
            if not done:
                peer.attached = False  # no memory: it does not become a peer of the socket

    def remove(self, Peer peer not None) -> None:
        """Removes a peer; ignores one that is not here."""
        if peer.attached:
            peer.attached = False
            if peer.dirty:
                # A socket that only sends never ends a turn: without this all its former peers would gather here.
                peer.dirty = False
                if self._dirty is not peer:
                    self._others.remove(peer)
                else:
                    self._dirty = self._others.pop() if self._others else None
            self.parked -= peer.parked
            peer.parked = 0
            self.detach(peer)

    def reclaim(self, Peer peer not None) -> None:
        """Takes back messages of *peer* of which nothing has left, where another peer may get them as well."""
        self.recall(peer)

    def entrust(self, Peer peer not None) -> None:
        """Gives *peer*, which is about to leave, the messages that wait here for any peer: there is no other peer."""

    @property
    def idle(self) -> bool:
        """Returns whether no accepted message waits here."""
        return self.parked == 0

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        """Returns 1: the message is accepted (or dropped, where the type drops); 0: there is no room now."""
        raise AssertionError("this socket type does not send")

    cdef int put_to(self, object route, const Part *parts, Py_ssize_t count) except -1:
        """Works like `put`, where the call names the message's receiver (`omq.types.Route`)."""
        raise StateError("this socket type does not send to a named receiver")

    cdef bint put_quickly(self, const Part *part) except -1:
        """Accepts a message if that takes few steps, else False. Needs no lock, like `RecvQueue.take_quickly`."""
        return False

    cdef Py_ssize_t put_run(self, list messages, Py_ssize_t start) except -1:
        """Accepts messages from `messages[start]` on in one go, if that is quicker; 0: use `put`."""
        return 0

    cdef Py_ssize_t room_for_run(self) except -1:
        """Returns the number of messages that `put_frames` would accept now; 0: use `put`."""
        return 0

    cdef int put_frames(self, const Run *run) except -1:
        """Accepts adjacent messages in the form of plain frames, no more than `room_for_run` has returned."""
        raise AssertionError("room_for_run() has returned 0")

    cdef bint can_put(self) except -1:
        """Returns whether `put` would accept a message now."""
        return False

    cdef int attach(self, Peer peer) except -1:
        return 0

    cdef int detach(self, Peer peer) except -1:
        self.wait_queue.notify()
        return 0

    cdef int opened(self, Peer peer) except -1:
        """Notes that *peer* can be written again."""
        self.parked -= peer.parked
        peer.parked = 0
        self.wait_queue.notify()
        return 0

    cdef int blocked(self, Peer peer) except -1:
        """Notes that *peer* cannot be written for now."""
        cdef Py_ssize_t pending = peer.pending()
        self.parked += pending - peer.parked
        peer.parked = pending
        return 0

    cdef int lost(self, Peer peer) except -1:
        """Notes that *peer* is over: it is removed in a moment, and gets nothing until then."""
        return 0

    cdef int recall(self, Peer peer) except -1:
        """Takes back messages of *peer* of which nothing has left, if another peer may get them as well."""
        return 0

    cdef bint heed(self, Peer peer, const char *body, Py_ssize_t size) except -1:
        """Handles a command of *peer* other than PING and PONG; False: it means nothing here, and the session gets it.

        A queue that sets `heeds` gets the command in its order with the peer's messages; no other code runs.
        Where the order does not matter the pattern's own `heed` is simpler.
        """
        return False

    cdef int on_message(self, Peer peer, object message) except -1:
        """Takes a message of *peer* (bytes, or a list of them) that no receive queue takes; here it is dropped."""
        return 0

    cdef Py_ssize_t waiting(self) noexcept:
        """Returns the number of accepted messages that no peer has yet."""
        return 0

    cdef int note(self, Peer peer) except -1:
        """Notes that *peer* holds a batch, which must leave before the socket does something else."""
        if not peer.dirty:
            peer.dirty = True
            if self._dirty is None:
                self._dirty = peer
            else:
                self._others.append(peer)
        return 0

    cdef int defer(self, Peer peer) except -1:
        """Notes that *peer* holds a batch, which must leave when the turn ends."""
        self.note(peer)
        if not self._scheduled:
            self._schedule()  # a signal handler may raise in it
            self._scheduled = True
        return 0

    cdef void begin_many(self) noexcept:
        """Notes that a call begins to put messages."""
        # The caller's own pauses count: putting messages to many peers takes long.
        self._was_idle = now_ns() - self._ran_out > SPARSE_NS

    cdef int end_many(self) except -1:
        """Notes that the call is finished: its messages leave at once after a pause, else when the turn ends."""
        self.more = False
        if self._was_idle and self._dirty is not None:
            self._flush_turn()
        self._ran_out = now_ns()
        return 0

    cdef int _flush_turn(self) except -1:
        cdef Peer peer = self._dirty
        cdef list others = self._others if self._others else None
        cdef Py_ssize_t served = 0
        self._scheduled = False
        if peer is not None:
            if others is not None:
                self._others = []
            self._dirty = None
            peer.dirty = False
            if others is None:
                peer.end_turn()
            else:
                try:
                    peer.end_turn()
                    for peer in others:
                        served += 1
                        peer.dirty = False
                        peer.end_turn()
                finally:
                    # The write to one peer may have failed for lack of memory; the next turn begins with the next peer.
                    for peer in others[served:]:
                        if peer.dirty:
                            peer.dirty = False
                            self.note(peer)
            self.wait_queue.notify()
        return 0
