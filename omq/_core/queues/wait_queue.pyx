"""Where the calls of a socket wait, and where its events are handled together: the two twins derive their own."""


cdef class WaitQueue:
    """Where the calls of a socket wait for something to change."""

    cdef int notify(self) except -1:
        """Wakes calls: their condition may have come true."""
        return 0

    cdef bint is_quiet(self) noexcept:
        """Whether no call waits for `notify`."""
        return False

    cdef int look(self, long long spent) except -1:
        """Looks at the socket's descriptors, without waiting; *spent*: nanoseconds since the last look here."""
        return 0


cdef class Turn:
    """One turn of an event loop: calls that it wakes run at its end, and not in the middle of a connection's work."""

    cdef int finish(self) except -1:
        return 0
