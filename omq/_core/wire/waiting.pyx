"""The queue of messages that wait until a peer can be written, shared by the owner and the background thread.

The owner takes a message when a peer has room. While the owner is busy the background thread takes it,
without the GIL: it takes over the reference, and neither makes nor drops one.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdlib cimport free, malloc
from posix.time cimport nanosleep, timespec

from omq._core.lock cimport store, take_flag

cdef extern from "Python.h":
    void Py_DECREF(PyObject *)

cdef enum:
    INITIAL_ROOM_MESSAGES = 16


@cython.final
@cython.no_gc  # bytes refer to nothing, and lent memory rarely does
cdef class WaitingMessages:
    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count()):
            Py_DECREF(self._ring[(self._first + i) & (self._room - 1)])
        free(self._ring)

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[bytes | tuple[bytes, ...]]:
        return iter(self._messages(False))

    def take_all(self) -> list[bytes | tuple[bytes, ...]]:
        """Takes all messages, the oldest first: all of them or, if it raises, not any."""
        return self._messages(True)

    cdef list _messages(self, bint taken):
        cdef list found = []  # before the flag is set: a new list may run the garbage collector, and any code
        cdef Py_ssize_t i
        self._enter()
        try:
            for i in range(self.count()):
                found.append(<object>self._ring[(self._first + i) & (self._room - 1)])
            if taken:
                for message in found:
                    Py_DECREF(<PyObject *>message)  # the list has its own reference
                store(&self._count, 0)
        finally:
            self.leave()
        return found

    cdef void _enter(self) noexcept:
        cdef timespec moment
        moment.tv_sec = 0
        moment.tv_nsec = 1000
        if not take_flag(&self._taken):
            with nogil:
                while not take_flag(&self._taken):
                    nanosleep(&moment, NULL)

    cdef int _make_room(self) except -1:
        """Makes room for one more message; the caller holds the flag."""
        cdef Py_ssize_t room, i
        cdef PyObject **ring
        if self.count() < self._room:
            return 0
        room = 2 * self._room or INITIAL_ROOM_MESSAGES
        ring = <PyObject **>malloc(room * sizeof(PyObject *))
        if ring == NULL:
            raise MemoryError()
        for i in range(self.count()):
            ring[i] = self._ring[(self._first + i) & (self._room - 1)]
        free(self._ring)
        self._ring = ring
        self._room = room
        self._first = 0
        return 0

    cdef int _put(self, object message, bint first) except -1:
        self._enter()
        try:
            self._make_room()
            Py_INCREF(message)
            if first:
                self._first = (self._first - 1) & (self._room - 1)
            self._ring[(self._first + (0 if first else self.count())) & (self._room - 1)] = <PyObject *>message
            store(&self._count, self._count + 1)
        finally:
            self.leave()
        return 0

    cdef int append(self, object message) except -1:
        return self._put(message, False)

    cdef int append_left(self, object message) except -1:
        return self._put(message, True)

    cdef int put_back(self, list messages) except -1:
        """Puts *messages* in front of the others, in their order."""
        for message in reversed(messages):
            self.append_left(message)
        return 0

    cdef object begin(self):
        """Takes the oldest message, and keeps the background thread out until `end`; None: the queue is empty.

        That thread would give the next message to the peer that is about to get this one.
        """
        cdef object message = None
        cdef PyObject *taken = NULL
        self._enter()
        if self.count():
            taken = self._ring[self._first]
            self.hand_over()
            self.kept_out = True
        self.leave()
        if taken != NULL:
            message = <object>taken
            Py_DECREF(taken)
        return message

    cdef void end(self) noexcept:
        """Lets the background thread take messages again: the peer has the message."""
        self._enter()
        self.kept_out = False
        self.leave()
