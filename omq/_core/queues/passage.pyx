"""One direction of a proxy: from the receive queue of one socket into the send queue of another.

A message is viewed in place, in the slab that the kernel filled, and the send queue copies it from there into the
batch of the peer that gets it. No Python object is made for it, except for parts above `MAX_INLINE_BYTES`, which go by
reference. The message stays in the receive queue until the send queue has accepted it. A target without room leaves
it there, its peer is not read beyond `recv_hwm`, and in the end the peer's own kernel holds its sender up.

The thread that moves messages holds the locks of all sockets that take part.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc, realloc

from omq._core.queues.peer cimport TURN_BYTES, TURN_MESSAGES, RecvQueue, SendQueue
from omq._core.queues.recv_queue cimport FilteredRecvQueue, ReplyRecvQueue, RequestRecvQueue, ShapedRecvQueue
from omq._core.queues.routed cimport ReplySendQueue
from omq._core.queues.send_queue cimport RequestSendQueue, RoundRobin, fill_part, hold
from omq._core.wire.frame_reader cimport Run
from omq._core.wire.send_buffer cimport MAX_INLINE_BYTES, STACK_PARTS, Part

from omq.errors import StateError, UnroutableError


@cython.final
cdef class Passage:
    """One direction of a proxy: from the receive queue of one socket into the send queue of another.

    A message stays in its receive queue until the send queue has accepted it.

    Args:
        source: The queue that messages are taken from.
        target: The queue that they are sent to.
        capture: Gets a copy of each message, or `None`.
    """

    def __cinit__(
        self, RecvQueue source not None, SendQueue target not None, SendQueue capture: SendQueue | None
    ) -> None:
        self.source = source
        self.target = target
        self.capture = capture
        self._by_turns = isinstance(source, (ReplyRecvQueue, RequestRecvQueue)) or isinstance(
            target, (ReplySendQueue, RequestSendQueue)
        )
        self._echoes = (isinstance(target, ReplySendQueue) and (<ReplySendQueue>target)._recv_queue is source) or (
            isinstance(target, RequestSendQueue) and (<RequestSendQueue>target)._recv_queue is source
        )
        self._plain = (
            capture is None
            and not self._by_turns
            and isinstance(target, RoundRobin)
            and not isinstance(source, (ShapedRecvQueue, FilteredRecvQueue))
        )
        self._large = []
        self._parts = <Part *>malloc(STACK_PARTS * sizeof(Part))
        if self._parts == NULL:
            raise MemoryError()
        self._room = STACK_PARTS

    def __dealloc__(self):
        free(self._parts)

    cdef Py_ssize_t move(self) except -1:
        """Forwards messages while there is room, up to `TURN_MESSAGES` or `TURN_BYTES`; returns their number."""
        cdef Py_ssize_t moved = 0
        cdef Py_ssize_t passed, count
        cdef long long bytes_before = self.bytes_in
        while moved < TURN_MESSAGES and self.bytes_in - bytes_before < TURN_BYTES:
            if self._plain:
                passed = self._move_run()
                if passed:
                    moved += passed
                    continue
            elif not self._has_room():
                break
            count = self._view()
            if count == 0 or not self._pass(count):
                break
            moved += 1
        if self._large:
            self._large.clear()
        return moved

    cdef Py_ssize_t _move_run(self) except -1:
        """Forwards adjacent messages, if they are all for one peer; returns their number."""
        cdef Run run
        cdef Py_ssize_t room = self.target.room_for_run()
        if room == 0 or not self.source.view_run(&run, min(room, TURN_MESSAGES // 4)):
            return 0
        self.target.put_frames(&run)
        self.source.drop_run(&run)
        self.messages_in += run.count
        self.messages_out += run.count
        self.bytes_in += run.body
        self.bytes_out += run.body
        return run.count

    cdef int _grow(self, Py_ssize_t count) except -1:
        """Makes room for the parts of a message that has many."""
        cdef void *memory = realloc(self._parts, count * sizeof(Part))
        if memory == NULL:
            raise MemoryError()
        self._parts = <Part *>memory
        self._room = count
        return 0

    cdef Py_ssize_t _view(self) except -1:
        """Finds the parts of the next message; returns their number, 0 if there is no message."""
        cdef Part *part
        cdef Py_ssize_t i
        cdef Py_ssize_t count = self.source.view(self._parts, self._room)
        while count > self._room:
            self._grow(count)
            count = self.source.view(self._parts, self._room)
        for i in range(count):
            part = self._parts + i
            if part.size > MAX_INLINE_BYTES and part.owner == NULL:
                # Batches borrow it, and so do inproc peers.
                self._large.append(PyBytes_FromStringAndSize(part.data, part.size))
                fill_part(part, <bytes>self._large[len(self._large) - 1])
        return count

    cdef bint _has_room(self) except -1:
        """Returns whether the next message may be forwarded.

        Most targets report that when they are given it. The capture is asked first, so that no message is forwarded
        without its copy, and no copy has to be kept for later: it would be lost with the proxy.
        """
        if self._echoes:
            # A REP that has taken a request can reply. For a REQ that has taken a reply only room counts.
            if isinstance(self.target, RequestSendQueue) and not RoundRobin.can_put(<RoundRobin>self.target):
                return False
        elif self._by_turns and not self.target.can_put():
            return False
        return self.capture is None or self.capture.can_put()

    cdef Py_ssize_t _pass(self, Py_ssize_t count) except -1:
        """Gives the message whose parts were found to the target and the capture; returns 0: there is no room."""
        cdef Py_ssize_t i
        cdef Py_ssize_t size = 0
        cdef bint sent = True
        cdef object taken = None
        for i in range(count):
            size += self._parts[i].size
        if self._echoes:
            taken = hold(self._parts, count)  # it keeps the parts where they are
            self.source.drop(size)
        try:
            if self.target.single_part and count > 1:
                sent = False
            elif not self.target.put(self._parts, count):
                if taken is None:
                    return 0
                sent = False
        except (StateError, UnroutableError):
            # The message names no peer of the ROUTER (RFC 28): a proxy has no caller to report that to.
            sent = False
        try:
            if self.capture is not None:
                self.capture.put(self._parts, count)  # it has room: that was checked before
        finally:
            # Even if the copy fails, the message has left: it must not leave twice.
            if taken is None:
                self.source.drop(size)
            self.messages_in += 1
            self.bytes_in += size
            if sent:
                self.messages_out += 1
                self.bytes_out += size
        return 1
