"""Bases of the twins' classes: wait queues for calls, and turns that handle events together."""


cdef class WaitQueue:
    """A queue where the calls of a socket wait for a change."""

    cdef int notify(self) except -1:
        """Wakes calls: their condition may have come true."""
        return 0

    cdef bint is_quiet(self) noexcept:
        """Returns whether no call waits for `notify`."""
        return False

    cdef int look(self, long long spent) except -1:
        """Checks the socket's descriptors, without waiting; *spent*: nanoseconds since the last check here."""
        return 0


cdef class Turn:
    """One turn of an event loop: calls that it wakes run at its end, and not in the middle of a connection's work."""

    cdef int finish(self) except -1:
        return 0
