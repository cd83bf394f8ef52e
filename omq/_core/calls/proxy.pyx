"""The work of a proxy on its sockets, for both twins: it forwards messages both ways and obeys its control socket.

Nothing here waits. The caller holds the locks of all sockets of the proxy.
"""

from omq._core.clock cimport now_ns
from omq._core.link.poller cimport Poller
from omq._core.link.receiver cimport Receiver
from omq._core.queues.passage cimport Passage
from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.queues.routed cimport ReplySendQueue
from omq._core.queues.send_queue cimport MAX_BATCH_MESSAGES, Distributor, fill_part
from omq._core.wire.send_buffer cimport BATCH_MESSAGES, Part

import struct

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)
    unsigned long FIONREAD

cdef enum:
    MAX_COMMANDS_PER_ROUND = 64        # commands that are obeyed in one round
    STATISTICS_NUMBERS = 8             # numbers in the answer to STATISTICS
    DRAIN_TIMEOUT_NS = 50000000        # after TERMINATE, while peers continue without a gap
    DRAIN_ROOM_TIMEOUT_NS = 500000000  # after TERMINATE, while a target has no room


cdef class ProxyCore:
    """The work of a proxy on its sockets, without waiting."""

    def __init__(self, frontend: Any, backend: Any, capture: Any, control: Any) -> None:
        cdef SendQueue spy = None if capture is None else capture.send_queue
        if frontend.recv_queue is not None and backend.send_queue is not None:
            self._forth = Passage(frontend.recv_queue, backend.send_queue, spy)
        if frontend is not backend and backend.recv_queue is not None and frontend.send_queue is not None:
            self._back = Passage(backend.recv_queue, frontend.send_queue, spy)
        if control is not None:
            self._control = control.recv_queue
            self._answers = control.send_queue
            self._owes = isinstance(self._answers, ReplySendQueue)
        self._sources = [
            one for one, passage in ((frontend, self._forth), (backend, self._back)) if passage is not None
        ]
        self._send_queues = list(dict.fromkeys([
            one.send_queue for one in (frontend, backend, capture, control)
            if one is not None and one.send_queue is not None
        ]))

    @property
    def draining(self) -> bool:
        """Returns whether TERMINATE has come: then `turn` checks the clock, too."""
        return self._state == PROXY_DRAINS

    @property
    def ended(self) -> bool:
        """Returns whether a command has ended the proxy."""
        return self._state == PROXY_ENDS

    def statistics(self) -> list[bytes]:
        """Returns messages and bytes received and sent by frontend and backend: eight unsigned 64-bit numbers."""
        cdef Passage forth = self._forth
        cdef Passage back = self._back
        frontend = [0, 0, 0, 0]
        backend = [0, 0, 0, 0]
        if forth is not None:
            frontend[:2] = forth.messages_in, forth.bytes_in
            backend[2:] = forth.messages_out, forth.bytes_out
        if back is not None:
            backend[:2] = back.messages_in, back.bytes_in
            frontend[2:] = back.messages_out, back.bytes_out
        return [struct.pack("=Q", figure) for figure in (*frontend, *backend)]

    cdef int _begin_turns(self, bint led) except -1:
        """Makes this proxy end the turns in which batches gather, or no longer."""
        cdef SendQueue send_queue
        for send_queue in self._send_queues:
            send_queue.led = led
            if isinstance(send_queue, Distributor):
                (<Distributor>send_queue)._adapt(send_queue.hwm)
            else:
                send_queue.most = MAX_BATCH_MESSAGES if led else BATCH_MESSAGES
        return 0

    cdef bint _round(self) except -1:
        """Obeys the control socket and forwards a turn's worth each way; returns whether there may be more to do."""
        cdef bint obeyed = self._control is not None and self._control.has_message()
        cdef bint moved = False
        if obeyed:
            self._obey()
        if self._state == PROXY_DRAINS:
            moved = self._drain()
        elif self._state == PROXY_RUNS:  # also next to an endless stream of commands
            moved = self._move() > 0
        return obeyed or moved

    cdef Py_ssize_t _move(self) except -1:
        """Forwards a turn's worth each way; returns how many messages, or 1 if messages were only dropped."""
        cdef Py_ssize_t moved = 0
        if self._forth is not None:
            moved += self._forth.move()
            moved += self._forth.source.unfinished
        if self._back is not None:
            moved += self._back.move()
            moved += self._back.source.unfinished
        return moved

    cdef int _flush(self) except -1:
        """Ends the turn: gathered messages leave."""
        cdef SendQueue send_queue
        for send_queue in self._send_queues:
            send_queue.flush_pending()
        return 0

    # ------------------------------------------------------------------ control

    cdef int _obey(self) except -1:
        """Obeys the commands that wait. Ignores unknown ones, as libzmq does; a REP answers those, too."""
        cdef Py_ssize_t left = MAX_COMMANDS_PER_ROUND
        cdef list command, answer
        while left > 0 and self._state != PROXY_ENDS and self._control.has_message():
            left -= 1
            command = self._control.take_message()
            answer = [b""] if self._owes else None
            if command == [b"STATISTICS"]:
                answer = self.statistics()
            elif command == [b"KILL"]:
                self._state = PROXY_ENDS
            elif self._state == PROXY_DRAINS:
                pass  # TERMINATE has come before
            elif command == [b"TERMINATE"]:
                self._begin_end()
            elif command == [b"PAUSE"]:
                self._state = PROXY_PAUSED
            elif command == [b"RESUME"]:
                self._state = PROXY_RUNS
            if answer is not None and self._answers is not None:
                self._answer(answer)
        return 0

    cdef int _answer(self, list parts) except -1:
        """Answers a command. It never waits for room: without room the answer is dropped."""
        cdef Part answer[STATISTICS_NUMBERS]
        cdef Py_ssize_t i
        for i in range(len(parts)):
            fill_part(answer + i, <bytes>parts[i])
        self._answers.put(answer, len(parts))
        return 0

    # ------------------------------------------------------------------ the end

    cdef int _begin_end(self) except -1:
        """Notes the messages that have been received: those that wait here, and those in the kernel."""
        cdef Poller poller
        cdef Receiver peer
        self._state = PROXY_DRAINS
        self._goals = []
        for poller in self._pollers:
            for one in poller._peers:
                if isinstance(one, Receiver):
                    peer = <Receiver>one
                    self._goals.append((peer, peer.bytes_in + unread_of(peer.fd)))
        self._look_at_goals()
        self._until = now_ns() + DRAIN_TIMEOUT_NS
        self._room_deadline = now_ns() + DRAIN_ROOM_TIMEOUT_NS
        return 0

    cdef bint _drain(self) except -1:
        """Forwards received messages, and those that follow without a gap; returns whether there may be more to do.

        Peers that never stop are cut off after DRAIN_TIMEOUT_NS. A target without room is waited for during
        DRAIN_ROOM_TIMEOUT_NS; the rest then stays in the socket that has received it.
        """
        cdef Poller poller
        cdef long long before = self._received()
        cdef long long reached
        cdef Py_ssize_t moved = self._move()
        cdef Py_ssize_t goals = len(self._goals)
        cdef long long now = now_ns()
        for poller in self._pollers:
            poller.serve()
        if moved == 0 and self._received() == before and self._waiting() == 0:
            self._state = PROXY_ENDS
            return False
        if goals:
            reached = self._reached
            self._look_at_goals()
            if len(self._goals) < goals or self._reached > reached:
                self._room_deadline = now + DRAIN_ROOM_TIMEOUT_NS
        elif self._left > 0:
            self._left -= moved
            if moved:
                self._room_deadline = now + DRAIN_ROOM_TIMEOUT_NS
        elif now > self._until:
            self._state = PROXY_ENDS
        if now > self._room_deadline:
            self._state = PROXY_ENDS
        return moved > 0

    cdef int _look_at_goals(self) except -1:
        """Drops goals that are reached; once all are, the waiting messages are the last to be forwarded."""
        self._goals = [(one, goal) for one, goal in self._goals if not is_past(one, goal)]
        self._reached = sum([(<Receiver>one).bytes_in for one, _ in self._goals])
        if not self._goals:
            self._left = self._waiting()
        return 0

    cdef long long _received(self) except -1:
        """Returns the number of bytes that have come from all connections."""
        cdef Poller poller
        cdef long long received = 0
        for poller in self._pollers:
            for one in poller._peers:
                if isinstance(one, Receiver):
                    received += (<Receiver>one).bytes_in
        return received

    cdef Py_ssize_t _waiting(self) except -1:
        """Returns the number of messages that could be forwarded if there were room."""
        cdef Passage passage
        cdef Py_ssize_t waiting = 0
        for passage in (self._forth, self._back):
            if passage is not None:
                waiting += passage.source.waiting()
        return waiting


cdef bint is_past(Receiver peer, long long goal) except -1:
    """Returns whether a peer has sent that many bytes, or will send no more."""
    return peer.lost or peer.bytes_in >= goal


cdef int unread_of(int fd) noexcept:
    """Returns the number of bytes in a descriptor's kernel buffer."""
    cdef int unread = 0
    return unread if fd >= 0 and ioctl(fd, FIONREAD, &unread) == 0 else 0
