# The blocking twin's calls: the calling thread does the work.

cimport cython

from omq._core.calls.leader cimport LeaderCore
from omq._core.link.convoy_breaker cimport yield_if_requested
from omq._core.queues.send_queue cimport fill_part
from omq._core.wire.send_buffer cimport Part


cdef class SyncCore(LeaderCore):
    cdef object _send_timeout        # seconds; None for ever
    cdef object _recv_timeout
    cdef bint _behind                # the last `_take` left messages in the receive queue: the peer is faster
    cdef int _publish(self) except -1
    cdef int _conceal(self) except -1
    cdef int _borrow(self, int *borrowed) except -1
    cdef int _give_back(self) except -1
    cdef int _refuse_unless_receiving(self) except -1
    cdef object _take(self, int how, object argument, object timeout, Py_buffer *into=*)
    cdef object _try(self, int how, object argument, Py_buffer *into)
    cdef int _put(self, object data, bint several, object route, object timeout) except -1

    @cython.final
    cdef inline bint _put_at_once(self, object data) except -1:
        """Sends `bytes` if that takes few steps; returns whether it does. Raises nothing of omq's."""
        cdef Part part
        if self.send_queue is None or not self.send_queue.quick or not self._is_free():
            return False
        fill_part(&part, <bytes>data)
        return self.send_queue.put_quickly(&part)

    @cython.final
    cdef inline int _put_bytes(self, object data) except -1:
        """Sends `bytes` if there is room for them now; returns whether there is."""
        cdef Part part
        cdef int done
        if self._put_at_once(data):
            return 1
        if self.send_queue is None:
            return 0
        fill_part(&part, <bytes>data)
        self._enter()
        try:
            done = self.send_queue.put(&part, 1)
        finally:
            self.lock.release()
        return done

    @cython.final
    cdef inline object _take_at_once(self):
        """Takes the next message, of one part, if that takes few steps, else None. Raises nothing of omq's."""
        if self.recv_queue is None or self._readable_event is not None or not self._is_free():
            return None
        return self.recv_queue.take_quickly()

    @cython.final
    cdef inline object _take_now(self, bint several):
        """Takes the next message if one has arrived, else None. *several*: as a list if it has several parts."""
        cdef object message
        if self.recv_queue is None:
            return None
        # The common case: a message has arrived.
        message = self._take_at_once()
        if message is not None:
            return message
        if self._readable_event is not None:
            yield_if_requested()  # lets the I/O thread show what arrives at other sockets
        self._enter()
        try:
            if self.recv_queue.look_if_due():
                self._run_handlers()
            message = self.recv_queue.take_any() if several else self.recv_queue.take()
            if message is not None and self._readable_event is not None:
                self._update_descriptor()
            return message
        finally:
            self.lock.release()
