"""inproc: messages pass by reference, from one end's `send` into the other end's ring."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pythread cimport PyThread_get_thread_ident
from libc.string cimport memcpy

from omq._core.wire.send_buffer cimport Part
from omq._core.bell cimport Bell
from omq._core.lock cimport SocketLock
from omq._core.queues.send_queue cimport message_bytes
from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport RecvQueue, Peer

from collections import deque

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)  # the length of a deque, without a call

cdef enum:
    MAX_MESSAGES_PER_TURN = 4096  # messages of one peer that a send queue handles in one go


cdef bytes asking(const char *prefix, Py_ssize_t size, bint subscribe):
    """Returns a subscription, or its end, as the message that XPUB's users get (RFC 29)."""
    cdef bytes word = PyBytes_FromStringAndSize(NULL, size + 1)
    PyBytes_AS_STRING(word)[0] = 1 if subscribe else 0
    memcpy(PyBytes_AS_STRING(word) + 1, prefix, size)
    return word


@cython.final
cdef class Pipe(ObjectPeer):
    """One end of an inproc connection.

    Args:
        session: The engine's owner.
        recv_queue: The queue for this end's messages; `None`: its send queue gets them, once it has one.
        capacity: Messages that wait here before the other end must wait (`recv_hwm`); 0 for no bound.
        bell: Calls functions in this end's loop.
        lock: Guards this end where threads share it; `None`: only its own thread uses it.
        conflate: A message replaces an earlier one that was not taken yet.
    """

    def __init__(
        self,
        session: Any,
        RecvQueue recv_queue: RecvQueue | None,
        Py_ssize_t capacity,
        Bell bell,
        SocketLock lock: SocketLock | None = None,
        bint conflate=False,
    ) -> None:
        self.session = session
        self.recv_queue = recv_queue
        self._ring = deque()
        self._capacity = capacity
        self._bell = bell
        self._lock = lock
        self._conflate = conflate

    def join(self, Pipe partner not None) -> None:
        """Connects the two ends."""
        self.partner = partner
        partner.partner = self
        self.writable = partner.writable = True

    def close(self) -> None:
        """Leaves the partner. Messages that have arrived on either side can still be taken."""
        cdef Pipe partner = self.partner
        self.lost = True
        self.writable = False
        self.send_queue = self.home = None
        if partner is not None:
            self.partner = None
            partner.partner = None
            partner.writable = False

    def set_recv_hwm(self, Py_ssize_t hwm):
        self._capacity = hwm
        self._make_room()

    @property
    def unread(self) -> int:
        """Messages that wait to be taken."""
        return Py_SIZE(self._ring)

    cdef Py_ssize_t ready(self) noexcept:
        return Py_SIZE(self._ring)

    cdef object take_quickly(self):
        cdef Pipe partner = self.partner
        if Py_SIZE(self._ring) == 0 or (partner is not None and not partner.writable):
            return None
        return self._ring.popleft() if type(self._ring[0]) is bytes else None

    cdef object _message(self):
        return self._ring[0]

    cdef int _taken(self) except -1:
        self._ring.popleft()
        self._part = 0
        self._make_room()
        return 0

    cdef int _make_room(self) except -1:
        """Notifies the partner when half of the ring is free: not one wake-up for each message."""
        cdef Pipe partner = self.partner
        if partner is not None and not partner.writable:
            if self._capacity == 0 or 2 * Py_SIZE(self._ring) <= self._capacity:
                partner._reach(False)
        return 0

    def reopen(self) -> None:
        """Notes that the partner has room again."""
        self._reopening = False
        self._reopen()

    cdef int _reopen(self) except -1:
        if self.partner is not None and not self.writable:
            self.writable = True
            if self.send_queue is not None:
                self.send_queue.opened(self)
        return 0

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Pipe partner = self.partner
        cdef Py_ssize_t i
        if partner is None:
            return 0
        if partner._conflate:
            # Another thread may be using the ring: that thread puts the message there.
            if partner._newest is not None and partner.recv_queue is not None:
                partner.recv_queue.dropped += 1
            partner._newest = message_bytes(parts, count)
        else:
            partner._ring.append(message_bytes(parts, count))
        self.messages_out += 1
        partner.messages_in += 1
        for i in range(count):
            self._sent += parts[i].size
            partner.bytes_in += parts[i].size
        if partner._capacity and Py_SIZE(partner._ring) >= partner._capacity and self.writable:
            self.writable = False
            if self.send_queue is not None:
                self.send_queue.blocked(self)
        partner._reach(True)
        return 1

    cdef bint send_quickly(self, const Part *part, Py_ssize_t hwm) except -1:
        cdef Pipe partner = self.partner
        if (partner is None or partner._lock is not None or partner._conflate or not partner.queued or not self.writable
                or part.owner == NULL or PyBytes_GET_SIZE(<object>part.owner) != part.size
                or (partner._capacity and Py_SIZE(partner._ring) + 1 >= partner._capacity)
                or partner.recv_queue is None or not partner.recv_queue.wait_queue.is_quiet() or partner._elsewhere()):
            return False
        # Other messages wait there already, and no call waits for them: no wake-up is necessary.
        partner._ring.append(<object>part.owner)
        self.messages_out += 1
        partner.messages_in += 1
        self._sent += part.size
        partner.bytes_in += part.size
        return True

    cdef int _reach(self, bint arrival) except -1:
        """Notifies this end of an arrival, or of room: at once if that is allowed, else through its own thread."""
        if self._lock is not None:
            if not self._lock.try_acquire():
                # Never wait for one socket's lock with another's held: the holder makes the call.
                self._lock.deferred.append(self.arrive if arrival else self.reopen)
                if not self._lock.try_acquire():
                    return 0
                # The holder has released it meanwhile: making the method may have run the collector, and that any code.
                self._lock.release()
                return 0
            try:
                return self._arrive() if arrival else self._reopen()
            finally:
                self._lock.release()
        if not self._elsewhere():
            return self._arrive() if arrival else self._reopen()
        if not arrival:
            if not self._reopening:
                self._reopening = True
                self._bell.post(self.reopen)
        elif not self._posted:
            self._posted = True
            self._bell.post(self.arrive)
        return 0

    cdef bint _elsewhere(self) noexcept:
        """Returns whether this end belongs to another thread's loop."""
        return self._bell is not None and self._bell.thread != PyThread_get_thread_ident()

    cdef int fail(self, object error) except -1:
        self.lost = True  # messages that it still sends are dropped
        if self._bell is not None:
            self._bell.request(self.session.end, error)
        else:
            self.session.end(error)
        return 0

    cdef long long sent_bytes(self) noexcept:
        return self._sent

    cdef Py_ssize_t pending(self) noexcept:
        # Messages in the partner's ring belong to the partner; the rest counts as waiting here.
        cdef Pipe partner = self.partner
        if partner is None or partner._capacity == 0:
            return 0
        return max(Py_SIZE(partner._ring) - partner._capacity, 0)

    def arrive(self) -> None:
        """Reports the messages that have arrived."""
        if self._lock is not None:
            self._lock.acquire()
        try:
            self._posted = False
            if self._ring or self._newest is not None:
                self._arrive()
        finally:
            if self._lock is not None:
                self._lock.release()

    cdef int _arrive(self) except -1:
        if self._newest is not None:
            message, self._newest = self._newest, None
            if self.recv_queue is not None:
                self.recv_queue.dropped += Py_SIZE(self._ring)
            self._ring.clear()
            self._ring.append(message)
        if self.recv_queue is not None:
            self.recv_queue.arrived(self)
            return 0
        return 0 if self.send_queue is None else self._pass_messages()

    cdef int _pass_messages(self) except -1:
        """Passes up to `MAX_MESSAGES_PER_TURN` arrived messages to the send queue, and schedules the rest."""
        cdef Py_ssize_t left = MAX_MESSAGES_PER_TURN
        while Py_SIZE(self._ring) and not self.lost:
            if left == 0 and self._bell is not None:
                if not self._posted:
                    self._posted = True
                    self._bell.post(self.arrive)
                break
            left -= 1
            message = self._ring[0]
            self._taken()
            self.send_queue.on_message(self, list(<tuple>message) if type(message) is tuple else message)
        return 0

    cdef int ask(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        cdef Pipe partner = self.partner
        if partner is None:
            return 0
        partner._ring.append(asking(prefix, size, subscribe))
        return partner._reach(True)

    cdef int ask_all(self, list prefixes) except -1:
        cdef Pipe partner = self.partner
        cdef bytes prefix
        if partner is None or not prefixes:
            return 0
        for prefix in prefixes:
            partner._ring.append(asking(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), True))
        return partner._reach(True)

    cpdef int control(self, bytes frames) except -1:
        raise AssertionError("an inproc pipe carries no frames")

    cpdef int command(self, bytes name, bytes data) except -1:
        cdef Pipe partner = self.partner
        cdef bytes body
        if partner is None:
            return 0
        body = PyBytes_FromStringAndSize(NULL, 1) + name + data
        PyBytes_AS_STRING(body)[0] = <char>PyBytes_GET_SIZE(name)
        # Later, and in its own thread: the caller may hold our lock, and the handler takes that of the other end.
        if partner._bell is not None:
            return partner._bell.request(partner.session.on_command, body)
        partner.session.on_command(body)
        return 0
