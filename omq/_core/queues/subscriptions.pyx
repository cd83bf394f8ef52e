"""The subscriptions that a publisher knows, and those of a subscriber (RFC 29).

No Python code runs here: subscriptions are handled under the socket's lock, in the calling thread. There a signal
handler that raised, or that called the socket, would find half-written tables.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memset

from omq._core.wire.send_buffer cimport Part
from omq._core.lock cimport SocketLock
from omq._core.queues.matcher cimport FOR_EVERYONE, Matcher
from omq._core.queues.send_queue cimport Distributor
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.mailbox cimport Mailbox
from omq._core.queues.peer cimport RecvQueue, Peer

from collections import deque

from omq.errors import RemoteProtocolError, StateError

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MAX_PENDING_REPORTS = 10000   # changes not yet reported to the engine, above which monitors get no more
    MAX_REPORTS_PER_TURN = 512    # changes that are reported to the engine in one go
    MAX_SWEEP_PREFIXES = 2048     # prefixes of a gone peer that are removed in one go: about a millisecond
    SUBSCRIBE_BYTES = 10          # bytes of a SUBSCRIBE's body before its prefix
    CANCEL_BYTES = 7              # bytes of a CANCEL's likewise
    MAX_PREFIX_BYTES = 256 << 20  # bytes of all prefixes of one peer, if their number has a limit


cdef inline bint is_asking(object part):
    """Returns whether a message starts with 1 or 0: a subscription or its end (RFC 29 and ZMTP 3.0)."""
    return PyBytes_GET_SIZE(part) > 0 and <unsigned char>PyBytes_AS_STRING(part)[0] <= 1


cdef class PublisherSendQueue(Distributor):
    """PUB and XPUB: keeps the subscriptions of each peer, and passes them to the XPUB's user.

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait for one peer; 0 for no bound.
        conflate: Keep only the newest message for a peer that cannot be written.
        limit: Prefixes that one peer may have; `None` for no bound.
        recv_queue: The queue from which the XPUB's user takes subscriptions and messages; `None` for a PUB.
        mailbox_hwm: Messages of each peer that may wait there; 0 for no bound.
        only_first: Only the first part of a message may be a subscription.

    Attributes:
        watched: A call waits for subscriptions: the next change is reported.
        monitored: Every change is reported.
        wanted: The peers' subscriptions, where the user puts them in force.
        mailbox: The messages for the XPUB's user.
    """
    # stub: matcher: Matcher
    # stub: wanted: Matcher | None
    # stub: mailbox: Mailbox | None

    def __dealloc__(self):
        free(self._holdings)

    def __init__(
        self,
        wait_queue: WaitQueue,
        hwm: int,
        *,
        conflate: bool = False,
        limit: int | None = None,
        RecvQueue recv_queue: RecvQueue | None = None,
        mailbox_hwm: int = 0,
        only_first: bool = False,
    ) -> None:
        Distributor.__init__(self, wait_queue, hwm, Matcher(), conflate)
        self.heeds = True
        self.mailbox = None if recv_queue is None else Mailbox(recv_queue, mailbox_hwm)
        self._leaving = deque()
        self._news = deque()
        self._limit = -1 if limit is None else limit
        self._only_first = only_first

    def configure(
        self,
        *,
        bint nodrop=False,
        bint invert=False,
        bint verbose=False,
        bint verboser=False,
        bint manual=False,
        bint last_value=False,
    ) -> None:
        """Sets the rules of the next messages, also while there are peers.

        Args:
            nodrop: Wait for a full peer instead of dropping.
            invert: Send to those that do not match.
            verbose: The user also gets subscriptions that are not new.
            verboser: Likewise of their ends.
            manual: The user puts subscriptions in force; those that are in force already stay.
            last_value: With *manual*: the message after a subscription is for its peer alone.
        """
        if manual != (self.wanted is not None):
            self._set_manual(manual)
        self._nodrop = nodrop and self._newest is None  # conflating rejects nothing: a message replaces the one before
        self._invert = invert
        self._verbose = verbose or verboser
        self._verboser = verboser
        self._last_value = last_value
        self.wait_queue.notify()  # calls may no longer have to wait for a full peer

    cdef int _set_manual(self, bint manual) except -1:
        """Begins, or ends, to keep the requests of the peers apart from the subscriptions in force."""
        cdef Matcher wanted = Matcher() if manual else None
        cdef Holding held
        cdef Py_ssize_t slot
        self._sweep(PY_SSIZE_T_MAX)  # the rest of gone peers is reported by the rules of their time
        for slot in range(len(self.peers)):
            if self.peers[slot] is None:
                continue
            held.number = held.size = 0
            for prefix in self.matcher.prefixes_of(slot):
                held.number += 1
                held.size += PyBytes_GET_SIZE(prefix)
                if wanted is not None:
                    wanted.c_add(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), <int>slot)
            self._holdings[slot] = held
        self.wanted = wanted
        self.mailbox.each = manual
        return 0

    def listen(self, on_change: Callable[[], None], on_subscribed: Callable[[Any, bytes, bool], None]) -> None:
        """Sets the functions that `report` calls; the second gets session, prefix, and whether it begins or ends."""
        self._on_change = on_change
        self._on_subscribed = on_subscribed

    def set_report(self, report):
        self._ask_report = report

    def close(self):
        Distributor.close(self)
        self._ask_report = None
        while self._leaving:
            (<Peer>self._leaving.popleft()).box = None
            self._leaving.popleft()

    def set_lock(self, SocketLock lock: SocketLock | None) -> None:
        """Sets the lock that the user's calls take; `None`: one thread makes all calls."""
        self._lock = lock

    def set_mailbox_hwm(self, Py_ssize_t hwm) -> None:
        """Changes how many messages of each peer may wait for the user."""
        if self.mailbox is not None:
            self.mailbox.set_hwm(hwm)

    cdef int _begin(self) except -1:
        """Begins a call of the user."""
        if self._lock is not None:
            self._lock.enter()
        return 0

    cdef int _finish(self) except -1:
        if self._lock is not None:
            self._lock.release()
        return 0

    # ------------------------------------------------------------------ peers

    cdef int attach(self, Peer peer) except -1:
        cdef void *memory
        cdef Py_ssize_t room
        Distributor.attach(self, peer)
        if peer.slot >= self._holdings_room:
            room = 2 * (<Py_ssize_t>peer.slot + 1)
            memory = realloc(self._holdings, room * sizeof(Holding))
            if memory == NULL:
                raise MemoryError()
            self._holdings = <Holding *>memory
            self._holdings_room = room
        memset(self._holdings + peer.slot, 0, sizeof(Holding))
        return 0

    def leave(self, Peer peer not None) -> None:
        """Forgets the subscriptions of *peer*, which is gone: a turn's work now, the rest in later turns."""
        if peer.slot >= 0:
            self._leaving.append(peer)
            self._leaving.append(peer.slot)
            peer.slot = -1
            try:
                self._sweep(MAX_SWEEP_PREFIXES)
            except RuntimeError:
                pass  # the loop is closed, and the socket with it: the rest goes with the matcher

    cdef int _sweep(self, Py_ssize_t left) except -1:
        """Forgets at most *left* prefixes of gone peers; the rest, or all without a loop, in later turns."""
        while self._leaving:
            left -= self._forget(self._leaving[0], self._leaving[1], left)
            if left > 0:
                # The matcher has nothing left of the slot, so another peer may get it.
                self._free.append(self._leaving[1])
                (<Peer>self._leaving[0]).box = None  # no more messages come from it
                self._leaving.popleft()
                self._leaving.popleft()
            elif self._schedule is None:
                left = MAX_SWEEP_PREFIXES
            else:
                if not self._scheduled:
                    self._schedule()
                    self._scheduled = True
                break
        return 0

    cdef Py_ssize_t _forget(self, Peer peer, int slot, Py_ssize_t limit) except -1:
        """Forgets at most *limit* prefixes of a peer; returns their number. Fewer: the peer holds no more."""
        cdef Py_ssize_t n = 0
        cdef bint named = self.mailbox is not None and self.wanted is None
        cdef bytes prefix = b""
        cdef int news
        while self.wanted is not None and n < limit:
            prefix = self.wanted.c_oldest(slot)
            if prefix is None:
                break
            self.wanted.c_shed(slot)
            # ZMQ_XPUB_MANUAL: each of its own subscriptions ends, whatever the user put in force for it.
            self.mailbox.note_subscription(peer, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), False, True)
            n += 1
        while n < limit:
            if named:
                prefix = self.matcher.c_oldest(slot)
                if prefix is None:
                    break
            news = self.matcher.c_shed(slot)
            if news < 0:
                break
            # ZMQ_XPUB_VERBOSER: the user gets every end of a subscription.
            if named and (news == FOR_EVERYONE or self._verboser):
                self.mailbox.note_subscription(
                    peer, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), False, news == FOR_EVERYONE
                )
            n += 1
        return n

    cdef int _flush_turn(self) except -1:
        Distributor._flush_turn(self)
        if self._leaving:
            self._sweep(MAX_SWEEP_PREFIXES)
        return 0

    # ------------------------------------------------------------------ messages to subscribers

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        cdef int accepted = Distributor.put(self, parts, count)
        if accepted and self._last_value:
            self.mailbox.sender = None  # as in libzmq: the next message is for all again
        return accepted

    cdef Py_ssize_t _select(self, const Part *first) except -1:
        cdef Py_ssize_t i, n = Distributor._select(self, first)
        if not self._last_value or self.mailbox.sender is None:
            return n
        # ZMQ_XPUB_MANUAL_LAST_VALUE: it is for the subscriber of the last message, and for no other.
        for i in range(n):
            if self._targets[i] == self.mailbox.sender.slot:
                self._targets[0] = self._targets[i]
                return 1
        return 0

    # ------------------------------------------------------------------ messages from subscribers

    cdef bint heed(self, Peer peer, const char *body, Py_ssize_t size) except -1:
        # RFC 37, The Publish-Subscribe Pattern: the command's data is the prefix.
        if size >= SUBSCRIBE_BYTES and memcmp(body, b"\x09SUBSCRIBE", SUBSCRIBE_BYTES) == 0:
            self._asked(peer, body + SUBSCRIBE_BYTES, size - SUBSCRIBE_BYTES, True)
            return True
        if size >= CANCEL_BYTES and memcmp(body, b"\6CANCEL", CANCEL_BYTES) == 0:
            self._asked(peer, body + CANCEL_BYTES, size - CANCEL_BYTES, False)
            return True
        return False

    cdef int _asked(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        cdef int slot = peer.slot
        cdef int news
        cdef Matcher book = self.matcher if self.wanted is None else self.wanted
        if slot < 0:
            return 0  # the peer is gone: this was on its way
        if subscribe:
            if not self._may_hold(book, slot, prefix, size):
                return peer.fail(
                    RemoteProtocolError(f"the peer subscribes to more than max_subscriptions={self._limit} prefixes")
                )
            news = book.c_add(prefix, size, slot)
        else:
            # A subscriber may have asked several times and takes all of it back with one CANCEL, as libzmq does.
            news = book.c_drop(prefix, size, slot)
        if news > 0:
            self._holdings[slot].number += 1 if subscribe else -1
            self._holdings[slot].size += size if subscribe else -size
        if self.wanted is not None:
            return self.mailbox.note_subscription(peer, prefix, size, subscribe, news > 0)
        if news > 0:
            self._changed(peer, prefix, size, subscribe)
        if self.mailbox is not None and (
                news == FOR_EVERYONE or (self._verbose if subscribe else self._verboser and news >= 0)):
            self.mailbox.note_subscription(peer, prefix, size, subscribe, news == FOR_EVERYONE)
        return 0

    cdef bint _may_hold(self, Matcher book, int slot, const char *prefix, Py_ssize_t size) noexcept:
        """Returns whether a peer may request this prefix; if not, it loses its connection."""
        cdef Holding *holding = self._holdings + slot
        return (
            self._limit < 0
            or (holding.number < self._limit and holding.size + size <= MAX_PREFIX_BYTES)
            or book.c_holds(prefix, size, slot)
        )

    cdef int on_message(self, Peer peer, object message) except -1:
        cdef list rest
        if type(message) is bytes:
            if is_asking(message):
                return self._asked(
                    peer, PyBytes_AS_STRING(message) + 1, PyBytes_GET_SIZE(message) - 1, PyBytes_AS_STRING(message)[0] == 1
                )
        elif self._only_first:
            if is_asking((<list>message)[0]):
                self.on_message(peer, (<list>message)[0])
                message = (<list>message)[1:]
        elif is_asking((<list>message)[0]):
            # As in libzmq: once the first part is a subscription, each part may be one.
            rest = []
            for part in <list>message:
                if is_asking(part):
                    self.on_message(peer, part)
                else:
                    rest.append(part)
            message = rest
            if not rest:
                return 0
        # Each peer has its own room: a peer that continues to send uses no room of the others.
        if self.mailbox is not None and peer.slot >= 0:
            if type(message) is list:
                message = tuple(<list>message) if len(<list>message) > 1 else (<list>message)[0]
            self.mailbox.deposit(message, peer)
        return 0

    # ------------------------------------------------------------------ calls of the XPUB's user

    def subscribe(self, bytes prefix not None) -> None:
        """Puts a subscription in force for the peer that the last message came from.

        Raises:
            StateError: No message has come.
        """
        self._put_in_force(prefix, True)

    def unsubscribe(self, bytes prefix not None) -> None:
        """Takes a subscription back; raises like `subscribe`."""
        self._put_in_force(prefix, False)

    cdef int _put_in_force(self, bytes prefix, bint subscribe) except -1:
        cdef const char *data = PyBytes_AS_STRING(prefix)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
        cdef Peer peer
        cdef int news
        self._begin()
        try:
            peer = self.mailbox.sender
            if peer is None:
                when = "since the last message was sent" if self._last_value else "yet"
                raise StateError(f"xpub_manual: no subscription to confirm has been received {when}")
            if peer.slot >= 0:  # otherwise it has gone meanwhile, and its subscriptions with it
                if subscribe:
                    news = self.matcher.c_add(data, size, peer.slot)
                else:
                    news = self.matcher.c_drop(data, size, peer.slot)
                if news > 0:
                    self._changed(peer, data, size, subscribe)
        finally:
            self._finish()
        return 0

    def subscriptions(self, bytes prefix: bytes | None = None) -> int:
        """Returns the number of distinct pairs of peer and prefix in force; of this prefix only, if one is given."""
        if self._lock is not None:
            self._lock.acquire()
        try:
            return len(self.matcher) if prefix is None else self.matcher.count(prefix)
        finally:
            self._finish()

    # ------------------------------------------------------------------ reports to the engine

    cdef int _changed(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        """Notes a change of the subscriptions in force."""
        if self.monitored and len(self._news) < 3 * MAX_PENDING_REPORTS:
            name = PyBytes_FromStringAndSize(prefix, size)
            self._news.append(peer.session)
            self._news.append(name)
            self._news.append(True if subscribe else False)
        if self.monitored or self.watched:
            self._report_soon()
        return 0

    cdef int _report_soon(self) except -1:
        if not self._reporting:
            if self._ask_report is None:
                self.report()
            else:
                self._ask_report()  # a signal handler may raise in it
                self._reporting = True
        return 0

    def report(self):
        """Reports a turn's worth of changes to the engine; in the engine's thread."""
        cdef Py_ssize_t left = min(len(self._news) // 3, <Py_ssize_t>MAX_REPORTS_PER_TURN)
        self._reporting = False
        while left > 0:
            left -= 1
            session = self._news.popleft()
            prefix = self._news.popleft()
            self._on_subscribed(session, prefix, self._news.popleft())
        if self.watched:
            self.watched = False
            self._on_change()
        if self._news:
            self._report_soon()


cdef class OwnSubscriptions:
    """The subscriptions of a SUB or XSUB: how often each was requested, and the publishers that are notified.

    Args:
        wait_queue: The wait queue of calls for wanted messages; `None` if unwanted ones can be taken, too.
        verbose: Publishers get each request to end a subscription, not only the last one.

    Attributes:
        matcher: The subscriptions; the slot is always 0.
    """

    def __init__(self, WaitQueue wait_queue: WaitQueue | None = None, verbose: bool = False) -> None:
        self.matcher = Matcher()
        self._wait_queue = wait_queue
        self._peers = ()
        self._verbose = verbose

    def set_lock(self, SocketLock lock: SocketLock | None) -> None:
        """Sets the lock that the user's calls take; `None`: one thread makes all calls."""
        self._lock = lock

    def add(self, Peer peer not None) -> None:
        """Sends a new peer all subscriptions, and from now on their changes."""
        self._peers += (peer,)
        peer.ask_all(self.matcher.prefixes_of(0))

    def remove(self, Peer peer not None) -> None:
        """Removes a peer: it gets no more changes."""
        self._peers = tuple([other for other in self._peers if other is not peer])

    def subscribe(self, bytes prefix not None) -> None:
        """Subscribes to a prefix; counts how often it was requested."""
        self._call(prefix, True)

    def unsubscribe(self, bytes prefix not None) -> None:
        """Takes one `subscribe` of this prefix back; ignores a prefix that was never requested."""
        self._call(prefix, False)

    cdef int _call(self, bytes prefix, bint subscribe) except -1:
        if self._lock is not None:
            self._lock.enter()
        try:
            self.change(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), subscribe)
            if self._wait_queue is not None and not subscribe:
                self._wait_queue.notify()  # waiting messages may be unwanted now
        finally:
            if self._lock is not None:
                self._lock.release()
        return 0

    cdef int change(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        cdef Peer peer
        if subscribe:
            # Publishers are notified each time, as by libzmq: they do not count, but one further up may need it.
            self.matcher.c_add(prefix, size, 0)
        elif self.matcher.c_remove(prefix, size, 0) != FOR_EVERYONE and not self._verbose:
            return 0
        for peer in self._peers:
            try:
                peer.ask(prefix, size, subscribe)
            except Exception as error:
                # A failure of one connection must not stop the others: its successor gets everything again.
                peer.log_error(error)
                peer.fail(error)
        return 0

    def inherit(self, OwnSubscriptions before not None, without: Iterable[bytes]) -> None:
        """Takes over another object's subscriptions, except one request each of *without*; must have no peers yet."""
        cdef Matcher theirs = before.matcher
        for prefix in without:
            theirs.remove(prefix, 0)
        for prefix in theirs.prefixes_of(0):
            self.matcher.add(prefix, 0)
            while theirs.remove(prefix, 0) == 0:  # it was requested more than once
                self.matcher.add(prefix, 0)


cdef class SubscriberSendQueue(Distributor):
    """XSUB: messages go to every publisher; those that start with 0 or 1 are subscriptions (RFC 29).

    Args:
        wait_queue: The wait queue of sending calls.
        hwm: Messages that may wait for one peer; 0 for no bound.
        own_subscriptions: The subscriptions to change.
        only_first: Only the first part of a message may be a subscription.
    """

    def __init__(
        self, wait_queue: WaitQueue, hwm: int, OwnSubscriptions own_subscriptions not None, only_first: bool = False
    ) -> None:
        Distributor.__init__(self, wait_queue, hwm, None)
        self._own_subscriptions = own_subscriptions
        self._only_first = only_first

    cdef int put(self, const Part *parts, Py_ssize_t count) except -1:
        if parts.size == 0 or <unsigned char>parts.data[0] > 1:
            return Distributor.put(self, parts, count)
        if count > 1:
            return self._put_first(parts, count) if self._only_first else self._put_mixed(parts, count)
        self._own_subscriptions.change(parts.data + 1, parts.size - 1, parts.data[0] == 1)
        return 1

    cdef int _put_first(self, const Part *parts, Py_ssize_t count) except -1:
        """Takes the first part as a subscription, and the others as a message, whatever they begin with."""
        cdef bint misleads = parts[1].size > 0 and <unsigned char>parts[1].data[0] <= 1
        self._own_subscriptions.change(parts.data + 1, parts.size - 1, parts.data[0] == 1)
        # A message that begins like a subscription would be one: the first part, which changes nothing any more, leads
        # it.
        return Distributor.put(self, parts, count) if misleads else Distributor.put(self, parts + 1, count - 1)

    cdef int _put_mixed(self, const Part *parts, Py_ssize_t count) except -1:
        """Takes each part that can be a subscription as one, like libzmq, if the first is; the others are a message."""
        cdef Part *rest = <Part *>malloc(count * sizeof(Part))
        cdef Py_ssize_t i, n = 0
        if rest == NULL:
            raise MemoryError()
        try:
            for i in range(count):
                if parts[i].size > 0 and <unsigned char>parts[i].data[0] <= 1:
                    self._own_subscriptions.change(parts[i].data + 1, parts[i].size - 1, parts[i].data[0] == 1)
                else:
                    rest[n] = parts[i]
                    n += 1
            return Distributor.put(self, rest, n) if n else 1
        finally:
            free(rest)
