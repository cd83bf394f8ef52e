# Messages that wait until a peer can be written.

from cpython.object cimport PyObject

from omq._core.lock cimport drop_flag, load, store, take_flag


cdef class WaitingMessages:
    cdef PyObject **_ring            # strong references to bytes, Loans, or tuples of these; owned
    cdef Py_ssize_t _room            # entries there is memory for: a power of 2, or 0
    cdef Py_ssize_t _first           # index of the oldest message
    cdef long long _count            # messages; atomic: the owner reads it without the flag
    cdef int _taken                  # atomic flag: a thread is at work here
    cdef bint kept_out               # the owner moves a message to a peer: the background thread takes none
    cdef void _enter(self) noexcept
    cdef int _make_room(self) except -1
    cdef list _messages(self, bint taken)
    cdef int _put(self, object message, bint first) except -1
    cdef int append(self, object message) except -1
    cdef int append_left(self, object message) except -1
    cdef int put_back(self, list messages) except -1
    cdef object begin(self)
    cdef void end(self) noexcept

    cdef inline void leave(self) noexcept nogil:
        drop_flag(&self._taken)

    cdef inline Py_ssize_t count(self) noexcept nogil:
        """Returns the number of messages: without the flag an upper bound, as the background thread takes some."""
        return <Py_ssize_t>load(&self._count)

    # For the background thread, which never waits for the flag.

    cdef inline bint enter_quickly(self) noexcept nogil:
        return take_flag(&self._taken)

    cdef inline PyObject *oldest(self) noexcept nogil:
        """Returns the next message; NULL: the queue is empty, or the owner is giving a message to a peer."""
        return self._ring[self._first] if self.count() and not self.kept_out else NULL

    cdef inline void hand_over(self) noexcept nogil:
        """Forgets the oldest message, whose reference was passed on."""
        self._first = (self._first + 1) & (self._room - 1)
        store(&self._count, self._count - 1)
